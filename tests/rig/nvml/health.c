/* How a GPU wears: errors of its memory, and what holds its clocks down. */
#include "rig.h"

/* enter_gpu(), then a 64-bit number of the GPU. */
static nvmlReturn_t wide(const char *function, nvmlDevice_t device, const char *key, u64 *out)
{
    struct target target;
    nvmlReturn_t answer = enter_gpu(function, device, &target);
    if (answer == NVML_SUCCESS && out == NULL)
        answer = NVML_ERROR_INVALID_ARGUMENT;
    if (answer == NVML_SUCCESS && !number(target.gpu, key, out))
        answer = NVML_ERROR_NOT_SUPPORTED;
    return leave(answer);
}

/* The count over the board's life is that since the driver was loaded unless the document gives its own. */
nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t errorType,
                                         nvmlEccCounterType_t counterType, unsigned long long *eccCounts)
{
    static const char *const TYPES[NVML_MEMORY_ERROR_TYPE_COUNT] = {
        [NVML_MEMORY_ERROR_TYPE_CORRECTED] = "corrected",
        [NVML_MEMORY_ERROR_TYPE_UNCORRECTED] = "uncorrected",
    };
    struct target target;
    nvmlReturn_t answer = enter_gpu(__func__, device, &target);
    const cJSON *lifetime = item(target.gpu, "ecc_lifetime_errors");
    if (answer == NVML_SUCCESS && (eccCounts == NULL || (size_t)errorType >= NVML_MEMORY_ERROR_TYPE_COUNT ||
                                   (size_t)counterType >= NVML_ECC_COUNTER_TYPE_COUNT))
        answer = NVML_ERROR_INVALID_ARGUMENT;
    if (answer == NVML_SUCCESS) {
        bool whole_life = counterType == NVML_AGGREGATE_ECC && lifetime != NULL;
        if (!number(whole_life ? lifetime : item(target.gpu, "ecc_errors"), TYPES[errorType], eccCounts))
            answer = NVML_ERROR_NOT_SUPPORTED;
    }
    return leave(answer);
}

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *corrRows, unsigned int *uncRows,
                                       unsigned int *isPending, unsigned int *failureOccurred)
{
    struct target target;
    nvmlReturn_t answer = enter_gpu(__func__, device, &target);
    const cJSON *given = item(target.gpu, "remapped_rows");
    if (answer == NVML_SUCCESS &&
        (corrRows == NULL || uncRows == NULL || isPending == NULL || failureOccurred == NULL))
        answer = NVML_ERROR_INVALID_ARGUMENT;
    else if (answer == NVML_SUCCESS && given == NULL)
        answer = NVML_ERROR_NOT_SUPPORTED;
    if (answer == NVML_SUCCESS) {
        number32(given, "corrected", corrRows);
        number32(given, "uncorrected", uncRows);
        *isPending = truth(given, "pending");
        *failureOccurred = truth(given, "failure");
    }
    return leave(answer);
}

#define REASONS(which, key)                                                                    \
    nvmlReturn_t nvmlDeviceGet##which##ClocksEventReasons(nvmlDevice_t device, u64 *reasons)    \
    {                                                                                          \
        return wide(__func__, device, key, reasons);                                           \
    }                                                                                          \
    nvmlReturn_t nvmlDeviceGet##which##ClocksThrottleReasons(nvmlDevice_t device, u64 *reasons) \
    {                                                                                          \
        return wide(__func__, device, key, reasons);                                           \
    }

REASONS(Current, "clocks_event_reasons")
REASONS(Supported, "supported_clocks_event_reasons")
