{{- define "agentgauge.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "agentgauge.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains (include "agentgauge.name" .) .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "agentgauge.name" .) | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "agentgauge.selector" -}}
app.kubernetes.io/name: {{ include "agentgauge.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "agentgauge.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "agentgauge.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "agentgauge.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "agentgauge.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* The configuration as TOML: the chart's own part, and over it the values'. */}}
{{- define "agentgauge.config" -}}
{{- $listen := dict "otlp_grpc" "0.0.0.0:4317" "otlp_http" "0.0.0.0:4318" "http" "0.0.0.0:9464" -}}
{{- $store := dict "durability" (ternary "fsync" "memory" .Values.persistence.enabled) "directory" "/var/lib/agentgauge" -}}
{{- $own := dict "listen" $listen "store" $store "links" (dict "public_url" .Values.publicUrl) -}}
{{- if .Values.tls.secret -}}
{{- $tls := dict "cert_file" "/etc/agentgauge/tls/tls.crt" "key_file" "/etc/agentgauge/tls/tls.key" -}}
{{- if .Values.tls.clientCaSecret -}}
{{- $tls = merge $tls (dict "client_ca_file" "/etc/agentgauge/clients/ca.crt" "client_auth" "request") -}}
{{- end -}}
{{- $own = merge $own (dict "tls" $tls) -}}
{{- else if .Values.tls.clientCaSecret -}}
{{- fail "tls.clientCaSecret needs tls.secret" -}}
{{- end -}}
{{- if .Values.tokens -}}
{{- $tokens := list -}}
{{- range .Values.tokens -}}
{{- $token := dict "name" .name "file" (printf "/etc/agentgauge/tokens/%s" .name) "may" (required "a token needs `may`" .may) -}}
{{- if .tenant -}}{{- $token = merge $token (dict "tenant" .tenant) -}}{{- end -}}
{{- $tokens = append $tokens $token -}}
{{- end -}}
{{- $own = merge $own (dict "access" (dict "tokens" $tokens)) -}}
{{- end -}}
{{- range $section, $options := mergeOverwrite $own (deepCopy .Values.config) }}
[{{ $section }}]
{{- range $option, $value := $options }}
{{ $option }} = {{ include "agentgauge.toml" $value }}
{{- end }}
{{ end -}}
{{- end -}}

{{/* A value as TOML. Helm's own toToml writes whole numbers as 1.0, which is no number of anything. */}}
{{- define "agentgauge.toml" -}}
{{- if kindIs "map" . -}}
{{- $pairs := list -}}
{{- range $key, $value := . -}}
{{- $pairs = append $pairs (printf "%s = %s" (toJson $key) (include "agentgauge.toml" $value)) -}}
{{- end -}}
{ {{- join ", " $pairs -}} }
{{- else if kindIs "slice" . -}}
{{- $values := list -}}
{{- range . -}}{{- $values = append $values (include "agentgauge.toml" .) -}}{{- end -}}
[ {{- join ", " $values -}} ]
{{- else -}}
{{- toJson . -}}
{{- end -}}
{{- end -}}
