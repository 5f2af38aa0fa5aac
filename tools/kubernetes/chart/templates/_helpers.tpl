{{/* Metadata of an object: (dict "root" $ "name" "server" "labelled" true). An object that is labelled is selected by it. */}}
{{- define "voice-clone.metadata" -}}
name: {{ .name }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- if .labelled }}
  app.kubernetes.io/name: {{ .name }}
  {{- end }}
  app.kubernetes.io/part-of: voice-clone
  app.kubernetes.io/instance: {{ .root.Release.Name }}
  app.kubernetes.io/managed-by: {{ .root.Release.Service }}
  helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{/* Labels that select the pods of a Deployment, by its name. */}}
{{- define "voice-clone.selector" -}}
{matchLabels: {app.kubernetes.io/name: {{ . }}}}
{{- end }}

{{/* The security of a container. */}}
{{- define "voice-clone.container-security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* Where pods run, and by which Secrets their images are pulled: (dict "root" $ "at" .Values.gateway). */}}
{{- define "voice-clone.placement" -}}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .at.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .at.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
