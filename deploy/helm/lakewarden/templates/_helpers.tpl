{{- define "lakewarden.name" -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "lakewarden.labels" -}}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{ include "lakewarden.selector" . }}
{{- end -}}

{{- define "lakewarden.selector" -}}
app.kubernetes.io/name: lakewarden
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "lakewarden.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (ternary (include "lakewarden.name" .) "default" .Values.serviceAccount.create) -}}
{{- end -}}

{{- define "lakewarden.webServiceAccount" -}}
{{- $own := printf "%s-web" (include "lakewarden.name" .) -}}
{{- .Values.web.serviceAccount.name | default (ternary $own "default" .Values.web.serviceAccount.create) -}}
{{- end -}}

{{- define "lakewarden.image" -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}

{{- /* memory_mb and 400 Mi, and with watched tables 768 Mi: no file of a table can end the container by its watcher's limit. */ -}}
{{- define "lakewarden.agentResources" -}}
{{- $watcher := ternary 0 768 (empty .Values.settings.watch) -}}
{{- $memory := dict "memory" (printf "%dMi" (add (.Values.settings.memory_mb | default 1000 | int) 400 $watcher)) -}}
{{- mergeOverwrite (dict "requests" (deepCopy $memory) "limits" (deepCopy $memory)) (deepCopy .Values.agents.resources) | toYaml -}}
{{- end -}}

{{- define "lakewarden.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "lakewarden.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- /* A setting's value as its environment variable has it. YAML's numbers are floats here: 2000000 would become 2e+06. */ -}}
{{- define "lakewarden.text" -}}
{{- if kindIs "slice" . -}}{{ join "," . }}
{{- else if kindIs "map" . -}}{{ toJson . }}
{{- else if and (kindIs "float64" .) (eq (floor .) .) -}}{{ int64 . }}
{{- else -}}{{ toString . }}
{{- end -}}
{{- end -}}

{{- /* The settings as environment variables, and the paths of the secrets' files. */ -}}
{{- define "lakewarden.env" -}}
{{- range $name, $value := .Values.settings }}
{{- if not (or (kindIs "invalid" $value) (and (kindIs "string" $value) (eq $value ""))) }}
- name: LAKEWARDEN_{{ upper $name }}
  value: {{ include "lakewarden.text" $value | quote }}
{{- end }}
{{- end }}
{{- range .Values.secretFiles }}
- name: LAKEWARDEN_{{ upper .setting }}
  value: {{ printf "/etc/lakewarden/%s/%s" .setting .key | quote }}
{{- end }}
{{- end -}}

{{- define "lakewarden.volumeMounts" -}}
{{- range .Values.secretFiles }}
- name: {{ .setting | replace "_" "-" }}
  mountPath: /etc/lakewarden/{{ .setting }}
  readOnly: true
{{- end }}
{{- end -}}

{{- define "lakewarden.volumes" -}}
{{- range .Values.secretFiles }}
- name: {{ .setting | replace "_" "-" }}
  secret:
    secretName: {{ .secretName }}
    defaultMode: 0440
    items:
      - key: {{ .key }}
        path: {{ .key }}
{{- end }}
{{- end -}}
