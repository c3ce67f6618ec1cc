/* How a GPU is doing. Whatever the document does not give is NOT_SUPPORTED. */
#include "rig.h"

#include <stdio.h>
#include <string.h>

static nvmlReturn_t gpu_number(const char *function, nvmlDevice_t device, const char *key, unsigned int *out)
{
    struct target target;
    nvmlReturn_t answer = enter_gpu(function, device, &target);
    if (answer == NVML_SUCCESS)
        answer = give_number(target.gpu, key, out);
    return leave(answer);
}

#define NUMBER(function, type, key)                                                   \
    nvmlReturn_t function(nvmlDevice_t device, type *out)                             \
    {                                                                                 \
        unsigned int value = 0;                                                       \
        nvmlReturn_t answer = gpu_number(__func__, device, key, out == NULL ? NULL : &value); \
        if (answer == NVML_SUCCESS)                                                   \
            *out = (type)value;                                                       \
        return answer;                                                                \
    }

NUMBER(nvmlDeviceGetMinorNumber, unsigned int, "minor")
NUMBER(nvmlDeviceGetPowerUsage, unsigned int, "power_mw")
NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned int, "power_limit_mw")
NUMBER(nvmlDeviceGetPowerManagementLimit, unsigned int, "power_management_limit_mw")
NUMBER(nvmlDeviceGetNumaNodeId, unsigned int, "numa_node")
NUMBER(nvmlDeviceGetVirtualizationMode, nvmlGpuVirtualizationMode_t, "virtualization")
NUMBER(nvmlDeviceGetPersistenceMode, nvmlEnableState_t, "persistence")
NUMBER(nvmlDeviceGetComputeMode, nvmlComputeMode_t, "compute_mode")
NUMBER(nvmlDeviceGetArchitecture, nvmlDeviceArchitecture_t, "architecture")
NUMBER(nvmlDeviceGetBrand, nvmlBrandType_t, "brand")
NUMBER(nvmlDeviceGetPerformanceState, nvmlPstates_t, "performance_state")
NUMBER(nvmlDeviceGetDisplayMode, nvmlEnableState_t, "display_mode")
NUMBER(nvmlDeviceGetDisplayActive, nvmlEnableState_t, "display_active")

struct memory {
    u64 total, used, free, reserved;
};

/* enter_device(), then the memory of the GPU or of the MIG device. */
static nvmlReturn_t read_memory(const char *function, nvmlDevice_t device, const void *out, struct memory *memory)
{
    struct target target;
    nvmlReturn_t answer = enter_device(function, device, &target);
    const cJSON *given;
    if (answer == NVML_SUCCESS && out == NULL)
        answer = NVML_ERROR_INVALID_ARGUMENT;
    if (answer != NVML_SUCCESS)
        return answer;
    given = item(target.instance != NULL ? target.instance : target.gpu, "memory");
    if (given == NULL)
        return NVML_ERROR_NOT_SUPPORTED;
    number(given, "total", &memory->total);
    number(given, "used", &memory->used);
    number(given, "free", &memory->free);
    number(given, "reserved", &memory->reserved);
    return NVML_SUCCESS;
}

/* The first version counts the reserved area as used ("sum of Reserved and Allocated"). */
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    struct memory given = {0};
    nvmlReturn_t answer = read_memory(__func__, device, memory, &given);
    if (answer == NVML_SUCCESS)
        *memory = (nvmlMemory_t){.total = given.total, .free = given.free, .used = given.used + given.reserved};
    return leave(answer);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    struct memory given = {0};
    nvmlReturn_t answer = read_memory(__func__, device, memory, &given);
    if (answer == NVML_SUCCESS && memory->version != nvmlMemory_v2)
        answer = NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (answer == NVML_SUCCESS) {
        memory->total = given.total;
        memory->reserved = given.reserved;
        memory->free = given.free;
        memory->used = given.used;
    }
    return leave(answer);
}

nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *bar1Memory)
{
    struct target target;
    nvmlReturn_t answer = enter_device(__func__, device, &target);
    const cJSON *given = item(target.instance != NULL ? target.instance : target.gpu, "bar1");
    if (answer == NVML_SUCCESS && bar1Memory == NULL)
        answer = NVML_ERROR_INVALID_ARGUMENT;
    else if (answer == NVML_SUCCESS && given == NULL)
        answer = NVML_ERROR_NOT_SUPPORTED;
    if (answer == NVML_SUCCESS) {
        number(given, "total", &bar1Memory->bar1Total);
        number(given, "free", &bar1Memory->bar1Free);
        number(given, "used", &bar1Memory->bar1Used);
    }
    return leave(answer);
}

nvmlReturn_t nvmlDeviceGetConfComputeMemSizeInfo(nvmlDevice_t device, nvmlConfComputeMemSizeInfo_t *memInfo)
{
    struct target target;
    nvmlReturn_t answer = enter_gpu(__func__, device, &target);
    const cJSON *given = item(target.gpu, "confidential_memory");
    if (answer == NVML_SUCCESS && memInfo == NULL)
        answer = NVML_ERROR_INVALID_ARGUMENT;
    else if (answer == NVML_SUCCESS && given == NULL)
        answer = NVML_ERROR_NOT_SUPPORTED;
    if (answer == NVML_SUCCESS) {
        number(given, "protected_kib", &memInfo->protectedMemSizeKib);
        number(given, "unprotected_kib", &memInfo->unprotectedMemSizeKib);
    }
    return leave(answer);
}

/* nvml.h: "On MIG-enabled GPUs, querying device utilization rates is not currently supported." Codecs likewise. */
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
    struct target target;
    nvmlReturn_t answer = enter_gpu(__func__, device, &target);
    const cJSON *given = mig_enabled(target.gpu) ? NULL : item(target.gpu, "utilization");
    if (answer == NVML_SUCCESS && utilization == NULL)
        answer = NVML_ERROR_INVALID_ARGUMENT;
    else if (answer == NVML_SUCCESS && given == NULL)
        answer = NVML_ERROR_NOT_SUPPORTED;
    if (answer == NVML_SUCCESS) {
        number32(given, "gpu", &utilization->gpu);
        number32(given, "memory", &utilization->memory);
    }
    return leave(answer);
}

static nvmlReturn_t codec(const char *function, nvmlDevice_t device, const char *key, unsigned int *busy,
                          unsigned int *period)
{
    struct target target;
    nvmlReturn_t answer = enter_gpu(function, device, &target);
    if (answer == NVML_SUCCESS && period == NULL)
        answer = NVML_ERROR_INVALID_ARGUMENT;
    if (answer == NVML_SUCCESS)
        answer = give_number(mig_enabled(target.gpu) ? NULL : target.gpu, key, busy);
    if (answer == NVML_SUCCESS) {
        *period = 167000;
        number32(target.gpu, "codec_period_us", period);
    }
    return leave(answer);
}

nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned int *utilization,
                                             unsigned int *samplingPeriodUs)
{
    return codec(__func__, device, "encoder", utilization, samplingPeriodUs);
}

nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned int *utilization,
                                             unsigned int *samplingPeriodUs)
{
    return codec(__func__, device, "decoder", utilization, samplingPeriodUs);
}

/* enter_gpu(), then one number out of a table that nvml.h indexes with an enumeration. */
static nvmlReturn_t choose(const char *function, nvmlDevice_t device, const char *group, const char *const *keys,
                           size_t count, size_t which, unsigned int *out)
{
    struct target target;
    nvmlReturn_t answer = enter_gpu(function, device, &target);
    if (answer == NVML_SUCCESS && which >= count)
        answer = NVML_ERROR_INVALID_ARGUMENT;
    if (answer == NVML_SUCCESS)
        answer = give_number(group == NULL ? target.gpu : item(target.gpu, group), keys[which], out);
    return leave(answer);
}

static const char *const SENSORS[NVML_TEMPERATURE_COUNT] = {
    [NVML_TEMPERATURE_GPU] = "temperature",
    [NVML_TEMPERATURE_GPU_MAX] = "temperature_max",
};

static const char *const THRESHOLDS[NVML_TEMPERATURE_THRESHOLD_COUNT] = {
    [NVML_TEMPERATURE_THRESHOLD_SHUTDOWN] = "shutdown",
    [NVML_TEMPERATURE_THRESHOLD_SLOWDOWN] = "slowdown",
    [NVML_TEMPERATURE_THRESHOLD_MEM_MAX] = "mem_max",
    [NVML_TEMPERATURE_THRESHOLD_GPU_MAX] = "gpu_max",
    [NVML_TEMPERATURE_THRESHOLD_ACOUSTIC_MIN] = "acoustic_min",
    [NVML_TEMPERATURE_THRESHOLD_ACOUSTIC_CURR] = "acoustic_curr",
    [NVML_TEMPERATURE_THRESHOLD_ACOUSTIC_MAX] = "acoustic_max",
    [NVML_TEMPERATURE_THRESHOLD_GPS_CURR] = "gps_curr",
};

static const char *const CLOCKS[NVML_CLOCK_COUNT] = {
    [NVML_CLOCK_GRAPHICS] = "graphics",
    [NVML_CLOCK_SM] = "sm",
    [NVML_CLOCK_MEM] = "memory",
    [NVML_CLOCK_VIDEO] = "video",
};

#define CHOOSE(function, device, group, keys, which, out) \
    choose(function, device, group, keys, sizeof keys / sizeof *keys, (size_t)(which), out)

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensorType, unsigned int *temp)
{
    return CHOOSE(__func__, device, NULL, SENSORS, sensorType, temp);
}

nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *temperature)
{
    unsigned int value = 0;
    bool known = temperature != NULL && temperature->version == nvmlTemperature_v1;
    size_t sensor = known ? (size_t)temperature->sensorType : 0;
    nvmlReturn_t answer = CHOOSE(__func__, device, NULL, SENSORS, sensor, temperature == NULL ? NULL : &value);
    if (answer != NVML_SUCCESS && answer != NVML_ERROR_NOT_SUPPORTED)
        return answer;
    if (!known)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (answer == NVML_SUCCESS)
        temperature->temperature = (int)value;
    return answer;
}

nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, nvmlTemperatureThresholds_t thresholdType,
                                               unsigned int *temp)
{
    return CHOOSE(__func__, device, "thresholds", THRESHOLDS, thresholdType, temp);
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock)
{
    return CHOOSE(__func__, device, "clocks", CLOCKS, type, clock);
}

nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock)
{
    return CHOOSE(__func__, device, "max_clocks", CLOCKS, type, clock);
}

nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, nvmlPcieUtilCounter_t counter, unsigned int *value)
{
    static const char *const COUNTERS[NVML_PCIE_UTIL_COUNT] = {
        [NVML_PCIE_UTIL_TX_BYTES] = "tx",
        [NVML_PCIE_UTIL_RX_BYTES] = "rx",
    };
    return CHOOSE(__func__, device, "pcie_kbs", COUNTERS, counter, value);
}

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, nvmlEnableState_t *current, nvmlEnableState_t *pending)
{
    unsigned int mode = 0;
    nvmlReturn_t answer = gpu_number(__func__, device, "ecc_mode", current == NULL || pending == NULL ? NULL : &mode);
    if (answer == NVML_SUCCESS)
        *current = *pending = (nvmlEnableState_t)mode;
    return answer;
}

nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *energy)
{
    struct target target;
    nvmlReturn_t answer = enter_gpu(__func__, device, &target);
    if (answer == NVML_SUCCESS && energy == NULL)
        answer = NVML_ERROR_INVALID_ARGUMENT;
    if (answer == NVML_SUCCESS && !number(target.gpu, "energy_mj", energy))
        answer = NVML_ERROR_NOT_SUPPORTED;
    return leave(answer);
}

nvmlReturn_t nvmlDeviceGetAddressingMode(nvmlDevice_t device, nvmlDeviceAddressingMode_t *mode)
{
    struct target target;
    nvmlReturn_t answer = enter_gpu(__func__, device, &target);
    const char *given = text(target.gpu, "addressing_mode");
    if (answer == NVML_SUCCESS && mode == NULL)
        answer = NVML_ERROR_INVALID_ARGUMENT;
    else if (answer == NVML_SUCCESS && mode->version != nvmlDeviceAddressingMode_v1)
        answer = NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    else if (answer == NVML_SUCCESS && given == NULL)
        answer = NVML_ERROR_NOT_SUPPORTED;
    if (answer == NVML_SUCCESS)
        mode->value = strcmp(given, "HMM") == 0   ? NVML_DEVICE_ADDRESSING_MODE_HMM
                      : strcmp(given, "ATS") == 0 ? NVML_DEVICE_ADDRESSING_MODE_ATS
                                                  : NVML_DEVICE_ADDRESSING_MODE_NONE;
    return leave(answer);
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    struct target target;
    nvmlReturn_t answer = enter_gpu(__func__, device, &target);
    const cJSON *given = item(target.gpu, "compute_capability");
    if (answer == NVML_SUCCESS && (major == NULL || minor == NULL))
        answer = NVML_ERROR_INVALID_ARGUMENT;
    else if (answer == NVML_SUCCESS && given == NULL)
        answer = NVML_ERROR_NOT_SUPPORTED;
    if (answer == NVML_SUCCESS) {
        *major = cJSON_GetArrayItem(given, 0)->valueint;
        *minor = cJSON_GetArrayItem(given, 1)->valueint;
    }
    return leave(answer);
}

static nvmlReturn_t fan(const char *function, nvmlDevice_t device, unsigned int which, unsigned int *speed)
{
    struct target target;
    nvmlReturn_t answer = enter_gpu(function, device, &target);
    const cJSON *fans = item(target.gpu, "fans");
    if (answer == NVML_SUCCESS && fans == NULL)
        answer = NVML_ERROR_NOT_SUPPORTED;
    else if (answer == NVML_SUCCESS && (speed == NULL || which >= (unsigned int)cJSON_GetArraySize(fans)))
        answer = NVML_ERROR_INVALID_ARGUMENT;
    if (answer == NVML_SUCCESS)
        *speed = as_u32(cJSON_GetArrayItem(fans, (int)which)->valuedouble);
    return leave(answer);
}

nvmlReturn_t nvmlDeviceGetFanSpeed(nvmlDevice_t device, unsigned int *speed)
{
    return fan(__func__, device, 0, speed);
}

nvmlReturn_t nvmlDeviceGetFanSpeed_v2(nvmlDevice_t device, unsigned int which, unsigned int *speed)
{
    return fan(__func__, device, which, speed);
}

nvmlReturn_t nvmlDeviceGetNumFans(nvmlDevice_t device, unsigned int *numFans)
{
    struct target target;
    nvmlReturn_t answer = enter_gpu(__func__, device, &target);
    if (answer == NVML_SUCCESS && numFans == NULL)
        answer = NVML_ERROR_INVALID_ARGUMENT;
    else if (answer == NVML_SUCCESS && item(target.gpu, "fans") == NULL)
        answer = NVML_ERROR_NOT_SUPPORTED;
    if (answer == NVML_SUCCESS)
        *numFans = (unsigned int)cJSON_GetArraySize(item(target.gpu, "fans"));
    return leave(answer);
}

/* Driver models are Windows' business. */
static nvmlReturn_t driver_model(const char *function, nvmlDevice_t device)
{
    struct target target;
    nvmlReturn_t answer = enter_gpu(function, device, &target);
    return leave(answer == NVML_SUCCESS ? NVML_ERROR_NOT_SUPPORTED : answer);
}

nvmlReturn_t nvmlDeviceGetDriverModel(nvmlDevice_t device, nvmlDriverModel_t *current, nvmlDriverModel_t *pending)
{
    (void)current;
    (void)pending;
    return driver_model(__func__, device);
}

nvmlReturn_t nvmlDeviceGetDriverModel_v2(nvmlDevice_t device, nvmlDriverModel_t *current, nvmlDriverModel_t *pending)
{
    (void)current;
    (void)pending;
    return driver_model(__func__, device);
}

static void fill_field(const cJSON *fields, nvmlFieldValue_t *field)
{
    char id[16];
    const cJSON *given;
    double value;
    snprintf(id, sizeof id, "%u", field->fieldId);
    given = item(fields, id);
    field->timestamp = 0;
    field->latencyUsec = 0;
    field->nvmlReturn = cJSON_IsNumber(given) ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
    if (field->nvmlReturn != NVML_SUCCESS)
        return;
    value = given->valuedouble;
    if (value < 0 && value == (double)(long long)value) {
        field->valueType = NVML_VALUE_TYPE_SIGNED_LONG_LONG;
        field->value.sllVal = (long long)value;
    } else if (value < 0 || value != (double)as_u64(value)) {
        field->valueType = NVML_VALUE_TYPE_DOUBLE;
        field->value.dVal = value;
    } else if (value <= 4294967295.0) {
        field->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
        field->value.uiVal = as_u32(value);
    } else {
        field->valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
        field->value.ullVal = as_u64(value);
    }
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int valuesCount, nvmlFieldValue_t *values)
{
    struct target target;
    nvmlReturn_t answer = enter_gpu(__func__, device, &target);
    if (answer == NVML_SUCCESS && (valuesCount < 1 || values == NULL))
        answer = NVML_ERROR_INVALID_ARGUMENT;
    for (int i = 0; answer == NVML_SUCCESS && i < valuesCount; i++)
        fill_field(item(target.gpu, "fields"), &values[i]);
    return leave(answer);
}
