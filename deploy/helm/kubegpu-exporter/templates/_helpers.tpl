{{/* Names. */}}
{{- define "kubegpu-exporter.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "kubegpu-exporter.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains (include "kubegpu-exporter.name" .) .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "kubegpu-exporter.name" .) | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "kubegpu-exporter.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride -}}
{{- end -}}

{{/* Objects of the cluster are named after the namespace too: two releases must not share one. */}}
{{- define "kubegpu-exporter.clusterName" -}}
{{- printf "%s-%s" (include "kubegpu-exporter.namespace" .) (include "kubegpu-exporter.fullname" .) | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "kubegpu-exporter.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "kubegpu-exporter.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* Labels and annotations. */}}
{{- define "kubegpu-exporter.selectorLabels" -}}
app.kubernetes.io/name: {{ include "kubegpu-exporter.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "kubegpu-exporter.labels" -}}
{{ include "kubegpu-exporter.selectorLabels" . }}
app.kubernetes.io/component: exporter
app.kubernetes.io/part-of: kubegpu-exporter
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Annotations of an object: the common ones and its own. In: dict "root" $ "own" map. */}}
{{- define "kubegpu-exporter.annotations" -}}
{{- with merge (deepCopy (default dict .own)) .root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* What a platform brings. */}}
{{- define "kubegpu-exporter.platforms" -}}
default: {kubelet: /var/lib/kubelet, runtimeClass: "", access: runtime, libraryDir: ""}
microk8s: {kubelet: /var/snap/microk8s/common/var/lib/kubelet, runtimeClass: nvidia, access: runtime, libraryDir: ""}
k3s: {kubelet: /var/lib/kubelet, runtimeClass: nvidia, access: runtime, libraryDir: ""}
k0s: {kubelet: /var/lib/k0s/kubelet, runtimeClass: "", access: runtime, libraryDir: ""}
rke2: {kubelet: /var/lib/kubelet, runtimeClass: nvidia, access: runtime, libraryDir: ""}
gke: {kubelet: /var/lib/kubelet, runtimeClass: "", access: host-library, libraryDir: /home/kubernetes/bin/nvidia/lib64}
openshift: {kubelet: /var/lib/kubelet, runtimeClass: nvidia, access: runtime, libraryDir: ""}
gpu-operator: {kubelet: /var/lib/kubelet, runtimeClass: nvidia, access: runtime, libraryDir: /run/nvidia/driver/usr/lib/x86_64-linux-gnu}
{{- end -}}

{{- define "kubegpu-exporter.platform" -}}
{{- get (include "kubegpu-exporter.platforms" . | fromYaml) .Values.platform | toYaml -}}
{{- end -}}

{{- define "kubegpu-exporter.kubeletRootDir" -}}
{{- $platforms := include "kubegpu-exporter.platforms" . | fromYaml -}}
{{- $name := default .Values.platform .Values.kubeletRootDir -}}
{{- if hasKey $platforms $name -}}
{{- (get $platforms $name).kubelet -}}
{{- else -}}
{{- trimSuffix "/" $name -}}
{{- end -}}
{{- end -}}

{{- define "kubegpu-exporter.gpuAccess" -}}
{{- default (include "kubegpu-exporter.platform" . | fromYaml).access .Values.gpuAccess.mode -}}
{{- end -}}

{{- define "kubegpu-exporter.libraryDir" -}}
{{- default (include "kubegpu-exporter.platform" . | fromYaml).libraryDir .Values.gpuAccess.libraryDir -}}
{{- end -}}

{{- define "kubegpu-exporter.runtimeClassName" -}}
{{- $access := include "kubegpu-exporter.gpuAccess" . -}}
{{- if .Values.runtimeClassName -}}
{{- if ne .Values.runtimeClassName "none" -}}{{- .Values.runtimeClassName -}}{{- end -}}
{{- else if has $access (list "runtime" "volume-mounts") -}}
{{- (include "kubegpu-exporter.platform" . | fromYaml).runtimeClass -}}
{{- end -}}
{{- end -}}

{{/* "true" where an object is wanted. In: dict "root" $ "value" true|false|"auto" "auto" bool. */}}
{{- define "kubegpu-exporter.wanted" -}}
{{- if eq (toString .value) "auto" -}}
{{- if .auto -}}true{{- end -}}
{{- else if .value -}}true{{- end -}}
{{- end -}}

{{- define "kubegpu-exporter.hasMonitoring" -}}
{{- if .Capabilities.APIVersions.Has "monitoring.coreos.com/v1" -}}true{{- end -}}
{{- end -}}

{{- define "kubegpu-exporter.monitorWanted" -}}
{{- include "kubegpu-exporter.wanted" (dict "value" .Values.monitor.enabled "auto" (include "kubegpu-exporter.hasMonitoring" .)) -}}
{{- end -}}

{{- define "kubegpu-exporter.rulesWanted" -}}
{{- include "kubegpu-exporter.wanted" (dict "value" .Values.rules.enabled "auto" (include "kubegpu-exporter.hasMonitoring" .)) -}}
{{- end -}}

{{- define "kubegpu-exporter.dashboardsWanted" -}}
{{- include "kubegpu-exporter.wanted" (dict "value" .Values.dashboards.enabled "auto" (include "kubegpu-exporter.hasMonitoring" .)) -}}
{{- end -}}

{{- define "kubegpu-exporter.serviceWanted" -}}
{{- $monitor := and (include "kubegpu-exporter.monitorWanted" .) (eq .Values.monitor.kind "ServiceMonitor") -}}
{{- if or .Values.service.enabled $monitor -}}true{{- end -}}
{{- end -}}

{{/* The image's name. */}}
{{- define "kubegpu-exporter.image" -}}
{{- $registry := default .Values.image.registry .Values.global.imageRegistry -}}
{{- $name := printf "%s/%s" $registry .Values.image.repository -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" $name .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "kubegpu-exporter.pullSecrets" -}}
{{- with concat .Values.global.imagePullSecrets .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ if kindIs "map" . }}{{ .name }}{{ else }}{{ . }}{{ end }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* A value of a setting as text. Numbers come from Helm as floats: 1000000 must not become 1e+06. */}}
{{- define "kubegpu-exporter.text" -}}
{{- if and (kindIs "float64" .) (eq (float64 (int64 .)) .) -}}{{- int64 . -}}{{- else -}}{{- toString . -}}{{- end -}}
{{- end -}}

{{- define "kubegpu-exporter.telemetryPath" -}}
{{- default "/metrics" (get .Values.settings "web.telemetry-path") -}}
{{- end -}}

{{- define "kubegpu-exporter.scheme" -}}
{{- if .Values.tls.secretName -}}https{{- else -}}http{{- end -}}
{{- end -}}

{{- define "kubegpu-exporter.webConfig" -}}
tls_server_config:
  cert_file: /etc/kubegpu-exporter/tls/tls.crt
  key_file: /etc/kubegpu-exporter/tls/tls.key
  {{- if .Values.tls.clientCA }}
  client_ca_file: /etc/kubegpu-exporter/tls/ca.crt
  client_auth_type: RequireAndVerifyClientCert
  {{- end }}
  min_version: {{ .Values.tls.minVersion }}
{{- end -}}

{{/* Combinations that cannot work, said before anything is installed. */}}
{{- define "kubegpu-exporter.check" -}}
{{- $access := include "kubegpu-exporter.gpuAccess" . -}}
{{- if eq $access "host-library" -}}
{{- if ne .Values.profile "privileged" -}}
{{- fail (printf "profile: %s cannot open the device files that gpuAccess.mode host-library leaves to the node; set profile=privileged or another gpuAccess.mode" .Values.profile) -}}
{{- end -}}
{{- if not (include "kubegpu-exporter.libraryDir" .) -}}
{{- fail "gpuAccess.libraryDir: must be set with gpuAccess.mode host-library; give the node's directory that has libnvidia-ml.so.1, such as /usr/lib/x86_64-linux-gnu" -}}
{{- end -}}
{{- end -}}
{{- if and .Values.tls.clientCA (not .Values.tls.secretName) -}}
{{- fail "tls.clientCA: needs tls.secretName; name the Secret that has tls.crt, tls.key and ca.crt" -}}
{{- end -}}
{{- end -}}
