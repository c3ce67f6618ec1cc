{{/* Arguments of the exporter. */}}
{{- define "kubegpu-exporter.args" -}}
- --web.listen-address=:{{ int .Values.port }}
- --kubelet.root-dir={{ include "kubegpu-exporter.kubeletRootDir" . }}
- --kubernetes.enabled={{ .Values.kubernetesApi.enabled }}
- --pause-file=/run/kubegpu-exporter/pause
{{- if .Values.podLogs.enabled }}
- --path.pod-logs={{ .Values.podLogs.hostPath }}
{{- end }}
{{- if eq (include "kubegpu-exporter.gpuAccess" .) "host-library" }}
- --nvml.library=/run/kubegpu-exporter-library/libnvidia-ml.so.1
{{- end }}
{{- if .Values.tls.secretName }}
- --web.config.file=/etc/kubegpu-exporter/web/web-config.yml
{{- end }}
{{- range $key, $value := .Values.settings }}
- {{ printf "--%s=%s" $key (include "kubegpu-exporter.text" $value) | quote }}
{{- end }}
{{- with .Values.extraArgs }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "kubegpu-exporter.env" -}}
- name: NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
{{- $access := include "kubegpu-exporter.gpuAccess" . }}
{{- if eq $access "runtime" }}
- name: NVIDIA_VISIBLE_DEVICES
  value: all
{{- else if eq $access "volume-mounts" }}
- name: NVIDIA_VISIBLE_DEVICES
  value: /var/run/nvidia-container-devices
{{- else }}
# Nothing for the NVIDIA runtime to do, should it be the node's default.
- name: NVIDIA_VISIBLE_DEVICES
  value: void
{{- end }}
- name: NVIDIA_DRIVER_CAPABILITIES
  value: utility
{{- if eq .Values.profile "mig-monitor" }}
- name: NVIDIA_MIG_MONITOR_DEVICES
  value: all
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "kubegpu-exporter.securityContext" -}}
runAsUser: 0
runAsGroup: 0
readOnlyRootFilesystem: true
{{- if eq .Values.profile "privileged" }}
privileged: true
{{- else }}
privileged: false
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
  add:
    - SYS_PTRACE
    - DAC_READ_SEARCH
    {{- if eq .Values.profile "mig-monitor" }}
    - SYS_ADMIN
    {{- end }}
seccompProfile:
  type: RuntimeDefault
{{- if semverCompare ">=1.30-0" .Capabilities.KubeVersion.Version }}
# The default profile of container runtimes forbids to look at processes outside it.
appArmorProfile:
  type: Unconfined
{{- end }}
{{- end }}
{{- $selinux := .Values.seLinuxOptions }}
{{- if and (not $selinux) (eq .Values.platform "openshift") }}
{{- $selinux = dict "type" "spc_t" }}
{{- end }}
{{- with $selinux }}
seLinuxOptions:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* A probe. In: dict "root" $ "path" "/-/healthy" "timing" map. */}}
{{- define "kubegpu-exporter.probe" -}}
{{- if .root.Values.tls.clientCA }}
# The kubelet has no certificate to show.
tcpSocket:
  port: metrics
{{- else }}
httpGet:
  path: {{ .path }}
  port: metrics
  scheme: {{ include "kubegpu-exporter.scheme" .root | upper }}
{{- end }}
{{ toYaml .timing }}
{{- end -}}

{{- define "kubegpu-exporter.volumeMounts" -}}
- name: pod-resources
  mountPath: {{ include "kubegpu-exporter.kubeletRootDir" . }}/pod-resources
  readOnly: true
{{- if .Values.podLogs.enabled }}
- name: pod-logs
  mountPath: {{ .Values.podLogs.hostPath }}
  readOnly: true
{{- end }}
- name: pause
  mountPath: /run/kubegpu-exporter
  {{- if .Values.pause.hostDirectory }}
  readOnly: true
  {{- end }}
{{- if eq (include "kubegpu-exporter.gpuAccess" .) "host-library" }}
- name: nvidia-library
  mountPath: /run/kubegpu-exporter-library
  # A driver container mounts its file system after this pod has started.
  mountPropagation: HostToContainer
  readOnly: true
{{- end }}
{{- if eq (include "kubegpu-exporter.gpuAccess" .) "volume-mounts" }}
- name: nvidia-all
  mountPath: /var/run/nvidia-container-devices/all
  readOnly: true
{{- end }}
{{- if .Values.tls.secretName }}
- name: web-config
  mountPath: /etc/kubegpu-exporter/web
  readOnly: true
- name: tls
  mountPath: /etc/kubegpu-exporter/tls
  readOnly: true
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "kubegpu-exporter.volumes" -}}
# The directory and not the socket: a kubelet that restarts makes another socket.
- name: pod-resources
  hostPath:
    path: {{ include "kubegpu-exporter.kubeletRootDir" . }}/pod-resources
    type: Directory
{{- if .Values.podLogs.enabled }}
- name: pod-logs
  hostPath:
    path: {{ .Values.podLogs.hostPath }}
    type: Directory
{{- end }}
- name: pause
  {{- if .Values.pause.hostDirectory }}
  hostPath:
    path: {{ .Values.pause.hostDirectory }}
    type: DirectoryOrCreate
  {{- else }}
  emptyDir:
    medium: Memory
    sizeLimit: 1Mi
  {{- end }}
{{- if eq (include "kubegpu-exporter.gpuAccess" .) "host-library" }}
# A node without a driver gets a pod that runs and says so, not one that waits.
- name: nvidia-library
  hostPath:
    path: {{ include "kubegpu-exporter.libraryDir" . }}
    type: DirectoryOrCreate
{{- end }}
{{- if eq (include "kubegpu-exporter.gpuAccess" .) "volume-mounts" }}
# The path in the container is the request; there is nothing to read.
- name: nvidia-all
  hostPath:
    path: /dev/null
    type: CharDevice
{{- end }}
{{- if .Values.tls.secretName }}
- name: web-config
  configMap:
    name: {{ include "kubegpu-exporter.fullname" . }}-web
- name: tls
  secret:
    secretName: {{ .Values.tls.secretName }}
    defaultMode: 0400
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* On nodes with any of the GPU labels, and on none that is being worked on. */}}
{{- define "kubegpu-exporter.lifecycle" -}}
{{- $paused := .Values.driverLifecycle.pausedValues -}}
{{- range .Values.driverLifecycle.labels }}
- key: {{ . }}
  operator: NotIn
  values:
    {{- if eq . "nvidia.com/gpu.deploy.kubegpu-exporter" }}
    - "false"
    {{- end }}
    {{- toYaml $paused | nindent 4 }}
{{- end }}
{{- end -}}

{{- define "kubegpu-exporter.affinity" -}}
{{- if .Values.affinity -}}
{{- toYaml .Values.affinity -}}
{{- else if or .Values.gpuNodes.enabled .Values.driverLifecycle.enabled -}}
nodeAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms:
      {{- if .Values.gpuNodes.enabled }}
      {{- range .Values.gpuNodes.labels }}
      - matchExpressions:
          {{- toYaml (list .) | nindent 10 }}
          {{- if $.Values.driverLifecycle.enabled }}
          {{- include "kubegpu-exporter.lifecycle" $ | nindent 10 }}
          {{- end }}
      {{- end }}
      {{- else }}
      - matchExpressions:
          {{- include "kubegpu-exporter.lifecycle" . | nindent 10 }}
      {{- end }}
{{- end -}}
{{- end -}}

{{/* What the GPU access asks for on the pod. */}}
{{- define "kubegpu-exporter.podAnnotations" -}}
{{- $access := include "kubegpu-exporter.gpuAccess" . -}}
{{- if eq $access "cdi" }}
cdi.k8s.io/kubegpu-exporter: management.nvidia.com/gpu=all
{{- end }}
{{- if eq $access "nri" }}
nvidia.cdi.k8s.io/container.exporter: management.nvidia.com/gpu=all
{{- end }}
{{- if and (ne .Values.profile "privileged") (semverCompare "<1.30-0" .Capabilities.KubeVersion.Version) }}
container.apparmor.security.beta.kubernetes.io/exporter: unconfined
{{- end }}
{{- if .Values.tls.secretName }}
checksum/web-config: {{ include "kubegpu-exporter.webConfig" . | sha256sum }}
{{- end }}
{{- with merge (deepCopy .Values.podAnnotations) .Values.commonAnnotations }}
{{ toYaml . }}
{{- end }}
{{- end -}}
