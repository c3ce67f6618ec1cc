{{/* The scrape contract, the same for both kinds of monitor. The exporter's labels namespace, pod and container name
     the workload that has the GPU. honorLabels keeps them where they are set; but an empty one would give way to the
     target's, so the target must have none. */}}
{{- define "kubegpu-exporter.endpoint" -}}
port: metrics
path: {{ include "kubegpu-exporter.telemetryPath" . }}
scheme: {{ include "kubegpu-exporter.scheme" . }}
{{- if .Values.tls.secretName }}
tlsConfig:
  {{- if .Values.monitor.tlsConfig }}
  {{- toYaml .Values.monitor.tlsConfig | nindent 2 }}
  {{- else }}
  insecureSkipVerify: true
  {{- end }}
{{- end }}
interval: {{ .Values.monitor.interval }}
scrapeTimeout: {{ .Values.monitor.scrapeTimeout }}
honorLabels: true
relabelings:
  - action: replace
    sourceLabels: [__meta_kubernetes_pod_node_name]
    targetLabel: node
  - action: labeldrop
    regex: pod|container|namespace|service|endpoint
  {{- with .Values.monitor.relabelings }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .Values.monitor.metricRelabelings }}
metricRelabelings:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
