/* What the document may contain. An unknown key ends the process: a misspelt key that were ignored would make a
 * test pass for the wrong reason. */
#include "rig.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum kind {
    NUMBER,  /* an integer, zero or more */
    FLAG,    /* true or false */
    TEXT,    /* a string */
    NAMES,   /* a list of strings */
    NUMBERS, /* a list of integers */
    OBJECT,  /* an object with the keys of `inside` */
    OBJECTS, /* a list of such objects */
    ROWS,    /* OBJECTS, or "permission", or {"code": N} */
    CALLS,   /* an object: exported function name → object with the keys of `inside` */
    FIELDS,  /* an object: field id → number */
    STATE,   /* FLAG, or an object with the keys of `inside` */
};

struct rule {
    const char *key;
    enum kind kind;
    const struct rule *inside;
    bool required;
};

static const struct rule CODE[] = {{"code", NUMBER, NULL, true}, {0}};

static const struct rule BEHAVIOUR[] = {
    {"code", NUMBER, NULL, false},   {"delay_ms", NUMBER, NULL, false}, {"hang", FLAG, NULL, false},
    {"hang_hard", FLAG, NULL, false}, {"crash", FLAG, NULL, false},      {"skip", NUMBER, NULL, false},
    {"times", NUMBER, NULL, false},  {0},
};

static const struct rule MEMORY[] = {
    {"total", NUMBER, NULL, true}, {"used", NUMBER, NULL, true}, {"free", NUMBER, NULL, true},
    {"reserved", NUMBER, NULL, true}, {0},
};

static const struct rule BAR1[] = {
    {"total", NUMBER, NULL, true}, {"used", NUMBER, NULL, true}, {"free", NUMBER, NULL, true}, {0},
};

static const struct rule UTILIZATION[] = {{"gpu", NUMBER, NULL, true}, {"memory", NUMBER, NULL, true}, {0}};

static const struct rule THRESHOLDS[] = {
    {"shutdown", NUMBER, NULL, false},     {"slowdown", NUMBER, NULL, false},
    {"mem_max", NUMBER, NULL, false},      {"gpu_max", NUMBER, NULL, false},
    {"acoustic_min", NUMBER, NULL, false}, {"acoustic_curr", NUMBER, NULL, false},
    {"acoustic_max", NUMBER, NULL, false}, {"gps_curr", NUMBER, NULL, false},
    {0},
};

static const struct rule CLOCKS[] = {
    {"graphics", NUMBER, NULL, false}, {"sm", NUMBER, NULL, false}, {"memory", NUMBER, NULL, false},
    {"video", NUMBER, NULL, false}, {0},
};

static const struct rule CONFIDENTIAL[] = {
    {"environment", NUMBER, NULL, true}, {"feature", NUMBER, NULL, true}, {"devtools", NUMBER, NULL, true}, {0},
};

static const struct rule CONFIDENTIAL_MEMORY[] = {
    {"protected_kib", NUMBER, NULL, true}, {"unprotected_kib", NUMBER, NULL, true}, {0},
};

static const struct rule ECC_ERRORS[] = {{"corrected", NUMBER, NULL, true}, {"uncorrected", NUMBER, NULL, true}, {0}};

static const struct rule REMAPPED_ROWS[] = {
    {"corrected", NUMBER, NULL, true}, {"uncorrected", NUMBER, NULL, true}, {"pending", FLAG, NULL, true},
    {"failure", FLAG, NULL, true}, {0},
};

static const struct rule PCIE[] = {{"tx", NUMBER, NULL, true}, {"rx", NUMBER, NULL, true}, {0}};

static const struct rule PROCESS[] = {
    {"pid", NUMBER, NULL, true}, {"memory", NUMBER, NULL, false},           {"gi", NUMBER, NULL, false},
    {"ci", NUMBER, NULL, false}, {"protected_memory", NUMBER, NULL, false}, {"raw", FLAG, NULL, false},
    {0},
};

static const struct rule SAMPLE[] = {
    {"pid", NUMBER, NULL, true}, {"timestamp", NUMBER, NULL, true}, {"sm", NUMBER, NULL, false},
    {"mem", NUMBER, NULL, false}, {"enc", NUMBER, NULL, false},     {"dec", NUMBER, NULL, false},
    {"jpg", NUMBER, NULL, false}, {"ofa", NUMBER, NULL, false},     {"raw", FLAG, NULL, false},
    {0},
};

static const struct rule PLACEMENT[] = {{"start", NUMBER, NULL, true}, {"size", NUMBER, NULL, true}, {0}};

static const struct rule INSTANCE[] = {
    {"slot", NUMBER, NULL, false},           {"uuid", TEXT, NULL, false},
    {"gi", NUMBER, NULL, true},              {"ci", NUMBER, NULL, false},
    {"gi_profile", NUMBER, NULL, false},     {"ci_profile", NUMBER, NULL, false},
    {"profile", TEXT, NULL, false},          {"name", TEXT, NULL, false},
    {"gpu_slices", NUMBER, NULL, false},     {"compute_slices", NUMBER, NULL, false},
    {"placement", OBJECT, PLACEMENT, false}, {"ci_placement", OBJECT, PLACEMENT, false},
    {"memory", OBJECT, MEMORY, false},       {"memory_mb", NUMBER, NULL, false},
    {"bar1", OBJECT, BAR1, false},           {"multiprocessors", NUMBER, NULL, false},
    {"copy_engines", NUMBER, NULL, false},   {"decoders", NUMBER, NULL, false},
    {"encoders", NUMBER, NULL, false},       {"jpeg", NUMBER, NULL, false},
    {"ofa", NUMBER, NULL, false},            {"calls", CALLS, BEHAVIOUR, false},
    {0},
};

static const struct rule PROFILE[] = {
    {"profile", NUMBER, NULL, true},         {"id", NUMBER, NULL, true},
    {"name", TEXT, NULL, true},              {"slices", NUMBER, NULL, true},
    {"instances", NUMBER, NULL, true},       {"memory_mb", NUMBER, NULL, true},
    {"multiprocessors", NUMBER, NULL, false}, {"copy_engines", NUMBER, NULL, false},
    {"decoders", NUMBER, NULL, false},       {"encoders", NUMBER, NULL, false},
    {"jpeg", NUMBER, NULL, false},           {"ofa", NUMBER, NULL, false},
    {"p2p", FLAG, NULL, false},              {"capabilities", NUMBER, NULL, false},
    {0},
};

static const struct rule MIG[] = {
    {"max", NUMBER, NULL, true}, {"instances", OBJECTS, INSTANCE, true}, {"profiles", OBJECTS, PROFILE, false}, {0},
};

static const struct rule DEVICE[] = {
    {"uuid", TEXT, NULL, true},
    {"pci", TEXT, NULL, true},
    {"name", TEXT, NULL, true},
    {"minor", NUMBER, NULL, false},
    {"serial", TEXT, NULL, false},
    {"pci_device_id", NUMBER, NULL, false},
    {"pci_subsystem_id", NUMBER, NULL, false},
    {"mig_mode", NUMBER, NULL, false},
    {"pending_mig_mode", NUMBER, NULL, false},
    {"mig", OBJECT, MIG, false},
    {"virtualization", NUMBER, NULL, false},
    {"memory", OBJECT, MEMORY, false},
    {"bar1", OBJECT, BAR1, false},
    {"utilization", OBJECT, UTILIZATION, false},
    {"encoder", NUMBER, NULL, false},
    {"decoder", NUMBER, NULL, false},
    {"codec_period_us", NUMBER, NULL, false},
    {"temperature", NUMBER, NULL, false},
    {"temperature_max", NUMBER, NULL, false},
    {"thresholds", OBJECT, THRESHOLDS, false},
    {"power_mw", NUMBER, NULL, false},
    {"power_limit_mw", NUMBER, NULL, false},
    {"power_management_limit_mw", NUMBER, NULL, false},
    {"energy_mj", NUMBER, NULL, false},
    {"clocks", OBJECT, CLOCKS, false},
    {"max_clocks", OBJECT, CLOCKS, false},
    {"numa_node", NUMBER, NULL, false},
    {"addressing_mode", TEXT, NULL, false},
    {"confidential", STATE, CONFIDENTIAL, false},
    {"confidential_memory", OBJECT, CONFIDENTIAL_MEMORY, false},
    {"persistence", NUMBER, NULL, false},
    {"compute_mode", NUMBER, NULL, false},
    {"compute_capability", NUMBERS, NULL, false},
    {"architecture", NUMBER, NULL, false},
    {"brand", NUMBER, NULL, false},
    {"performance_state", NUMBER, NULL, false},
    {"fans", NUMBERS, NULL, false},
    {"ecc_mode", NUMBER, NULL, false},
    {"ecc_errors", OBJECT, ECC_ERRORS, false},
    {"ecc_lifetime_errors", OBJECT, ECC_ERRORS, false},
    {"remapped_rows", OBJECT, REMAPPED_ROWS, false},
    {"clocks_event_reasons", NUMBER, NULL, false},
    {"supported_clocks_event_reasons", NUMBER, NULL, false},
    {"pcie_kbs", OBJECT, PCIE, false},
    {"display_mode", NUMBER, NULL, false},
    {"display_active", NUMBER, NULL, false},
    {"fields", FIELDS, NULL, false},
    {"compute", ROWS, PROCESS, false},
    {"graphics", ROWS, PROCESS, false},
    {"mps", ROWS, PROCESS, false},
    {"process_utilization", ROWS, SAMPLE, false},
    {"calls", CALLS, BEHAVIOUR, false},
    {"lost", FLAG, NULL, false},
    {"lost_handle", FLAG, NULL, false},
    {0},
};

static const struct rule INIT[] = {{"code", NUMBER, NULL, false}, {"delay_ms", NUMBER, NULL, false}, {0}};

static const struct rule NODE[] = {
    {"driver_version", TEXT, NULL, true},
    {"nvml_version", TEXT, NULL, true},
    {"cuda_version", NUMBER, NULL, true},
    {"devices", OBJECTS, DEVICE, true},
    {"confidential", STATE, CONFIDENTIAL, false},
    {"missing_symbols", NAMES, NULL, false},
    {"init", OBJECT, INIT, false},
    {"calls", CALLS, BEHAVIOUR, false},
    {0},
};

#define WHERE 256

static void below(char *out, const char *where, const char *key)
{
    snprintf(out, WHERE, "%s%s%s", where, *where == '\0' ? "" : ".", key);
}

static void check_object(const char *where, const cJSON *object, const struct rule *rules);

static void check_objects(const char *where, const cJSON *list, const struct rule *rules)
{
    const cJSON *entry;
    int position = 0;
    if (!cJSON_IsArray(list))
        refuse(where, "must be a list");
    cJSON_ArrayForEach(entry, list)
    {
        char inner[WHERE];
        snprintf(inner, sizeof inner, "%s[%d]", where, position++);
        check_object(inner, entry, rules);
    }
}

static void check_number(const char *where, const cJSON *value)
{
    if (!cJSON_IsNumber(value) || value->valuedouble < 0 || floor(value->valuedouble) != value->valuedouble)
        refuse(where, "must be an integer of zero or more");
}

static void check_calls(const char *where, const cJSON *calls, const struct rule *rules)
{
    const cJSON *call;
    if (!cJSON_IsObject(calls))
        refuse(where, "must be an object");
    cJSON_ArrayForEach(call, calls)
    {
        char inner[WHERE];
        below(inner, where, call->string);
        if (!exported(call->string))
            refuse(inner, "is no function of this library");
        check_object(inner, call, rules);
    }
}

static void check_list_of(const char *where, const cJSON *list, bool strings)
{
    const cJSON *entry;
    if (!cJSON_IsArray(list))
        refuse(where, "must be a list");
    cJSON_ArrayForEach(entry, list)
    {
        if (!strings)
            check_number(where, entry);
        else if (!cJSON_IsString(entry))
            refuse(where, "must be a list of strings");
    }
}

static void check_rows(const char *where, const cJSON *rows, const struct rule *rules)
{
    if (cJSON_IsString(rows)) {
        if (strcmp(rows->valuestring, "permission") != 0)
            refuse(where, "must be a list, \"permission\" or {\"code\": N}");
    } else if (cJSON_IsObject(rows)) {
        check_object(where, rows, CODE);
    } else {
        check_objects(where, rows, rules);
    }
}

static void check_value(const char *where, const cJSON *value, const struct rule *rule)
{
    switch (rule->kind) {
    case NUMBER:
        check_number(where, value);
        break;
    case FLAG:
        if (!cJSON_IsBool(value))
            refuse(where, "must be true or false");
        break;
    case TEXT:
        if (!cJSON_IsString(value))
            refuse(where, "must be a string");
        break;
    case NAMES:
    case NUMBERS:
        check_list_of(where, value, rule->kind == NAMES);
        break;
    case OBJECT:
        check_object(where, value, rule->inside);
        break;
    case OBJECTS:
        check_objects(where, value, rule->inside);
        break;
    case ROWS:
        check_rows(where, value, rule->inside);
        break;
    case CALLS:
        check_calls(where, value, rule->inside);
        break;
    case FIELDS:
        if (!cJSON_IsObject(value))
            refuse(where, "must be an object");
        break;
    case STATE:
        if (!cJSON_IsBool(value))
            check_object(where, value, rule->inside);
        break;
    }
}

static void check_object(const char *where, const cJSON *object, const struct rule *rules)
{
    const cJSON *member;
    const struct rule *rule;
    char inner[WHERE];
    if (!cJSON_IsObject(object))
        refuse(where, "must be an object");
    cJSON_ArrayForEach(member, object)
    {
        below(inner, where, member->string);
        for (rule = rules; rule->key != NULL && strcmp(rule->key, member->string) != 0; rule++)
            ;
        if (rule->key == NULL)
            refuse(inner, "is no known key");
        if (!cJSON_IsNull(member))
            check_value(inner, member, rule);
    }
    for (rule = rules; rule->key != NULL; rule++) {
        below(inner, where, rule->key);
        if (rule->required && item(object, rule->key) == NULL)
            refuse(inner, "is missing");
    }
}

/* Garbage must be asked for: a pid that no kernel gives out is a slip unless the row says "raw". */
static void check_sane_rows(const char *where, const cJSON *rows)
{
    static const char *const PERCENT[] = {"sm", "mem", "enc", "dec", "jpg", "ofa"};
    const cJSON *row;
    if (!cJSON_IsArray(rows))
        return;
    cJSON_ArrayForEach(row, rows)
    {
        u64 value = 0;
        if (truth(row, "raw"))
            continue;
        if (number(row, "pid", &value) && (value == 0 || value > 4194304))
            refuse(where, "has a pid that cannot exist (say \"raw\": true if it is meant)");
        for (size_t i = 0; i < sizeof PERCENT / sizeof *PERCENT; i++)
            if (number(row, PERCENT[i], &value) && value > 100)
                refuse(where, "has a utilization above 100 (say \"raw\": true if it is meant)");
    }
}

static void check_pci(const char *pci)
{
    unsigned int part;
    char rest;
    if (sscanf(pci, "%8x:%2x:%2x.%1x%c", &part, &part, &part, &part, &rest) != 4)
        refuse("devices", "has a pci that is not like 00000000:3B:00.0");
}

static void check_slots(const cJSON *gpu)
{
    const cJSON *instance;
    const cJSON *other;
    unsigned int max = 0;
    unsigned int slot = 0;
    unsigned int taken = 0;
    number32(item(gpu, "mig"), "max", &max);
    cJSON_ArrayForEach(instance, mig_instances(gpu))
    {
        if (!number32(instance, "slot", &slot))
            continue;
        if (item(instance, "uuid") == NULL || item(instance, "ci") == NULL)
            refuse("mig.instances", "has a slot, so it needs uuid and ci");
        if (slot >= max)
            refuse("mig.instances", "has a slot that is not below mig.max");
        for (other = instance->next; other != NULL; other = other->next)
            if (number32(other, "slot", &taken) && taken == slot)
                refuse("mig.instances", "has one slot twice");
    }
}

static void check_gpu(const cJSON *gpu)
{
    const char *mode = text(gpu, "addressing_mode");
    const cJSON *capability = item(gpu, "compute_capability");
    check_pci(text(gpu, "pci"));
    check_sane_rows("compute", item(gpu, "compute"));
    check_sane_rows("graphics", item(gpu, "graphics"));
    check_sane_rows("mps", item(gpu, "mps"));
    check_sane_rows("process_utilization", item(gpu, "process_utilization"));
    if (strlen(text(gpu, "uuid")) >= NVML_DEVICE_UUID_V2_BUFFER_SIZE)
        refuse("devices", "has a uuid that is too long");
    if (mode != NULL && strcmp(mode, "NONE") != 0 && strcmp(mode, "HMM") != 0 && strcmp(mode, "ATS") != 0)
        refuse("devices", "has an addressing_mode other than NONE, HMM and ATS");
    if (capability != NULL && cJSON_GetArraySize(capability) != 2)
        refuse("devices", "has a compute_capability that is not [major, minor]");
    if (mig_enabled(gpu) && item(gpu, "mig") == NULL)
        refuse("devices", "has mig_mode 1 and no mig");
    check_slots(gpu);
}

void check(const cJSON *root)
{
    const cJSON *gpu;
    const cJSON *other;
    check_object("", root, NODE);
    cJSON_ArrayForEach(gpu, item(root, "devices"))
    {
        check_gpu(gpu);
        for (other = gpu->next; other != NULL; other = other->next)
            if (text(other, "uuid") != NULL && strcmp(text(gpu, "uuid"), text(other, "uuid")) == 0)
                refuse("devices", "has one uuid twice");
    }
}
