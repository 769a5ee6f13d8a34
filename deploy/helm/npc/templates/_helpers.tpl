{{- define "npc.labels" -}}
app.kubernetes.io/component: network-policy-agent
app.kubernetes.io/name: npc
{{- end }}

{{- /* Where probes ask: the pod's own address, which is the node's, unless health is kept to the loopback. */ -}}
{{- define "npc.health" -}}
{{- if not .Values.monitoring.enabled -}}
host: 127.0.0.1
{{ end -}}
port: health
{{- end }}
