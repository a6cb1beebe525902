{{- define "drover.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "drover.config" -}}
{{- if not .Values.config.server.urls -}}
{{- fail "set config.server.urls to the addresses at which agents and users reach the hub, for example --set 'config.server.urls={https://drover.example.com}'" -}}
{{- end -}}
{{- toYaml (mergeOverwrite (deepCopy .Values.config) (dict "namespace" .Release.Namespace)) -}}
{{- end -}}

{{- /* The name ends in a hash of the content, so that a changed configuration restarts the pods. */ -}}
{{- define "drover.configName" -}}
drover-config-{{ include "drover.config" . | sha256sum | trunc 10 }}
{{- end -}}

{{- /* The host names of all addresses of the hub, as a JSON array. */ -}}
{{- define "drover.hosts" -}}
{{- $hosts := list -}}
{{- range .Values.config.server.urls -}}
{{- $host := (urlParse .).hostname -}}
{{- if regexMatch "^[0-9.]+$|:" $host -}}
{{- fail (printf "config.server.urls: %s has no host name, and an Ingress or a Gateway routes by host name" .) -}}
{{- end -}}
{{- $hosts = append $hosts $host -}}
{{- end -}}
{{- $hosts | uniq | toJson -}}
{{- end -}}
