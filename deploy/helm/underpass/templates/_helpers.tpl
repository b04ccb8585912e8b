{{- define "underpass.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 53 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 53 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "underpass.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "underpass.counterSelector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}-counter
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "underpass.labels" -}}
{{ include "underpass.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "underpass.serviceAccount" -}}
{{- default (include "underpass.name" .) .Values.serviceAccount.name }}
{{- end }}

{{- define "underpass.image" -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end }}

{{- define "underpass.config" -}}
[agent]
metrics = "{{ .Values.metrics.address }}:{{ .Values.metrics.port }}"
{{ .Values.agent | trim }}
{{ .Values.config | trim }}
{{- if .Values.policy.fromCluster }}

[policy]
source = "kubernetes"
{{- end }}
{{- end }}
