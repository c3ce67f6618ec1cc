/* What a GPU is called and where it sits. */
#include "rig.h"

#include <stdio.h>
#include <string.h>

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
    struct target target;
    nvmlReturn_t answer = enter_device(__func__, device, &target);
    if (answer == NVML_SUCCESS)
        answer = give_text(text(target.instance != NULL ? target.instance : target.gpu, "uuid"), uuid, length);
    return leave(answer);
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
    struct target target;
    char made[256];
    nvmlReturn_t answer = enter_device(__func__, device, &target);
    const char *value;
    if (answer != NVML_SUCCESS)
        return leave(answer);
    value = text(target.instance != NULL ? target.instance : target.gpu, "name");
    if (value == NULL && text(target.instance, "profile") != NULL) {
        snprintf(made, sizeof made, "%s MIG %s", text(target.gpu, "name"), text(target.instance, "profile"));
        value = made;
    }
    return leave(give_text(value, name, length));
}

nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned int length)
{
    struct target target;
    nvmlReturn_t answer = enter_gpu(__func__, device, &target);
    if (answer == NVML_SUCCESS)
        answer = give_text(text(target.gpu, "serial"), serial, length);
    return leave(answer);
}

/* For a MIG device the index counts within its parent. */
nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
    struct target target;
    nvmlReturn_t answer = enter_device(__func__, device, &target);
    if (answer == NVML_SUCCESS && index == NULL)
        answer = NVML_ERROR_INVALID_ARGUMENT;
    if (answer == NVML_SUCCESS)
        *index = target.instance != NULL ? target.handle->first : target.index;
    return leave(answer);
}

/* The struct grew with the symbol's version, so the older names must not write the newer tail. */
static nvmlReturn_t pci_info(const char *function, nvmlDevice_t device, nvmlPciInfo_t *pci, size_t size)
{
    struct target target;
    nvmlPciInfo_t info = {0};
    nvmlReturn_t answer = enter_gpu(function, device, &target);
    if (answer == NVML_SUCCESS && pci == NULL)
        answer = NVML_ERROR_INVALID_ARGUMENT;
    if (answer != NVML_SUCCESS)
        return leave(answer);
    sscanf(text(target.gpu, "pci"), "%8x:%2x:%2x", &info.domain, &info.bus, &info.device);
    number32(target.gpu, "pci_device_id", &info.pciDeviceId);
    number32(target.gpu, "pci_subsystem_id", &info.pciSubSystemId);
    snprintf(info.busIdLegacy, sizeof info.busIdLegacy, NVML_DEVICE_PCI_BUS_ID_LEGACY_FMT, info.domain & 0xffffU,
             info.bus & 0xffU, info.device & 0x1fU);
    snprintf(info.busId, sizeof info.busId, NVML_DEVICE_PCI_BUS_ID_FMT, info.domain, info.bus, info.device);
    memcpy(pci, &info, size);
    return leave(answer);
}

nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    return pci_info(__func__, device, pci, offsetof(nvmlPciInfo_t, pciSubSystemId));
}

nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    return pci_info(__func__, device, pci, offsetof(nvmlPciInfo_t, busId));
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    return pci_info(__func__, device, pci, sizeof *pci);
}
