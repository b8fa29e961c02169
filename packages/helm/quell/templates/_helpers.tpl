{{/* The name of every object. */}}
{{- define "quell.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "quell.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "quell.labels" -}}
{{ include "quell.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "quell.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{/* The Secret that has the token. */}}
{{- define "quell.tokenSecret" -}}
{{ .Values.token.existingSecret | default (printf "%s-token" (include "quell.fullname" .)) }}
{{- end -}}

{{/* Refuses values that would lose jobs or leave the server open. */}}
{{- define "quell.validate" -}}
{{- $isFile := hasPrefix "sqlite:" .Values.store.url -}}
{{- if and $isFile (gt (int .Values.replicas) 1) -}}
{{- fail (printf "replicas: %d pods would each have a store of their own, as store.url is a file: set 1, or a database" (int .Values.replicas)) -}}
{{- end -}}
{{- if and $isFile (not .Values.persistence.enabled) -}}
{{- fail "persistence.enabled: the store is a file and would be lost with its pod: enable it, or set store.url to a database" -}}
{{- end -}}
{{- if hasPrefix "memory:" .Values.store.url -}}
{{- fail "store.url: memory: loses accepted jobs with each pod: set a file or a database" -}}
{{- end -}}
{{- if and (not .Values.token.existingSecret) (not .Values.token.value) -}}
{{- fail "token: the server listens on all addresses and needs one: set token.existingSecret or token.value" -}}
{{- end -}}
{{- end -}}

{{/* The host names of the service and of values. */}}
{{- define "quell.allowedHosts" -}}
{{- $name := include "quell.fullname" . -}}
{{- $space := .Release.Namespace -}}
{{- $own := list $name (printf "%s.%s" $name $space) (printf "%s.%s.svc" $name $space) (printf "%s.%s.svc.cluster.local" $name $space) -}}
{{- concat $own .Values.allowedHosts | toJson -}}
{{- end -}}
