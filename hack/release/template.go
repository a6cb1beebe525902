// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"
)

// opening is a place in a manifest where the chart inserts a value. The template replaces the mark in the manifest.
// If the template consists of whole lines, it replaces the whole line that contains the mark.
type opening struct {
	mark, template string
	// before and after are added around the whole manifest.
	before, after string
}

// open turns a manifest into a template. It escapes text that Helm would interpret as an expression, and then fills
// in the openings.
func open(manifest []byte, opens []opening) []byte {
	text := strings.ReplaceAll(string(manifest), "{{", `{{ "{{" }}`)
	text = strings.ReplaceAll(text, manifestNamespace, "{{ .Release.Namespace }}")
	for _, o := range opens {
		if o.mark == "" {
			text = o.before + text + o.after
			continue
		}
		line := strings.Split(o.template, "\n")
		if len(line) == 1 {
			text = strings.ReplaceAll(text, o.mark, o.template)
			continue
		}
		var lines []string
		for l := range strings.Lines(text) {
			if strings.Contains(l, o.mark) {
				l = o.template
			}
			lines = append(lines, l)
		}
		text = strings.Join(lines, "")
	}
	return []byte(text)
}

func quote(s string) string { return strconv.Quote(s) }

// block returns a template of whole lines for an optional field. indent is the indentation of the field in spaces.
func block(field, value string, indent int) string {
	spaces := strings.Repeat(" ", indent)
	return fmt.Sprintf("%s{{- with .Values.%s }}\n%s%s:\n%s  {{- toYaml . | nindent %d }}\n%s{{- end }}\n", spaces, value, spaces, field, spaces, indent+2, spaces)
}

func deploymentOpenings(o object) ([]opening, error) {
	spec, _ := at(o, "spec").(map[string]any)
	pod, _ := at(o, "spec", "template", "spec").(map[string]any)
	container, err := managerOf(o)
	if err != nil {
		return nil, err
	}
	spec["replicas"] = "@replicas"
	container["image"], container["imagePullPolicy"], container["resources"], container["env"] = "@image", "@pull", "@resources", "@env"
	pod["priorityClassName"], pod["nodeSelector"], pod["tolerations"], pod["imagePullSecrets"] = "@priority", "@nodes", "@tolerations", "@secrets"
	volumes, _ := pod["volumes"].([]any)
	for _, volume := range volumes {
		if config, ok := at(volume, "configMap").(map[string]any); ok {
			config["name"] = "@config"
		}
	}
	return []opening{
		{mark: "'@replicas'", template: "{{ .Values.replicas }}"},
		{mark: "'@image'", template: `{{ include "drover.image" . | quote }}`},
		{mark: "'@pull'", template: "        {{- with .Values.image.pullPolicy }}\n        imagePullPolicy: {{ . }}\n        {{- end }}\n"},
		{mark: "'@resources'", template: block("resources", "resources", 8)},
		{mark: "'@env'", template: block("env", "env", 8)},
		{mark: "'@priority'", template: "      {{- with .Values.priorityClassName }}\n      priorityClassName: {{ . }}\n      {{- end }}\n"},
		{mark: "'@nodes'", template: block("nodeSelector", "nodeSelector", 6)},
		{mark: "'@tolerations'", template: block("tolerations", "tolerations", 6)},
		{mark: "'@secrets'", template: block("imagePullSecrets", "imagePullSecrets", 6)},
		{mark: "'@config'", template: `{{ include "drover.configName" . }}`},
	}, nil
}

func configOpenings(o object) []opening {
	at(o, "metadata").(map[string]any)["name"] = "@config"
	at(o, "data").(map[string]any)["config.yaml"] = "@content"
	return []opening{
		{mark: "'@config'", template: `{{ include "drover.configName" . }}`},
		{mark: "'@content'", template: "  config.yaml: |\n    {{- include \"drover.config\" . | nindent 4 }}\n"},
	}
}

func serviceOpenings(o object) []opening {
	metadata, spec := at(o, "metadata").(map[string]any), at(o, "spec").(map[string]any)
	metadata["annotations"], spec["type"] = "@annotations", "@type"
	spec["ports"].([]any)[0].(map[string]any)["nodePort"] = "@nodePort"
	return []opening{
		{mark: "'@annotations'", template: block("annotations", "service.annotations", 2)},
		{mark: "'@nodePort'", template: `    {{- with .Values.service.nodePort }}
    nodePort: {{ . }}
    {{- end }}
`},
		{mark: "'@type'", template: `  {{- if ne .Values.service.type "ClusterIP" }}
  type: {{ .Values.service.type }}
  externalTrafficPolicy: {{ .Values.service.externalTrafficPolicy }}
  {{- end }}
  {{- with .Values.service.loadBalancerClass }}
  loadBalancerClass: {{ . }}
  {{- end }}
`},
	}
}

func managerOf(o object) (map[string]any, error) {
	containers, _ := at(o, "spec", "template", "spec", "containers").([]any)
	for _, c := range containers {
		if container, ok := c.(map[string]any); ok && container["name"] == "manager" {
			return container, nil
		}
	}
	return nil, errors.New("the Deployment has no container manager")
}

// values generates values.yaml with the defaults from the manifests.
func (r release) values(all []object) ([]byte, error) {
	var out bytes.Buffer
	repository, tag := r.image, ""
	if colon := strings.LastIndexByte(r.image, ':'); colon > strings.LastIndexByte(r.image, '/') {
		repository, tag = r.image[:colon], r.image[colon+1:]
	}
	section := func(comment, key string, value any) error {
		text, err := yaml.Marshal(map[string]any{key: value})
		fmt.Fprintf(&out, "# %s\n%s", comment, text)
		return err
	}
	var errs []error
	add := func(comment, key string, value any) { errs = append(errs, section(comment, key, value)) }
	add("The image of manager and agents. A digest takes precedence over the tag.", "image", map[string]any{"repository": repository, "tag": tag, "digest": "", "pullPolicy": ""})
	add("Secrets of the namespace for pulling the manager's image: [{name: …}].", "imagePullSecrets", []any{})
	for _, o := range all {
		switch {
		case o.text("kind") == "Deployment":
			container, err := managerOf(o)
			if err != nil {
				return nil, err
			}
			add("Replicas of the manager. One of them leads, and all serve requests.", "replicas", at(o, "spec", "replicas"))
			add("Resources of the manager. Raise the memory limit together with GOMEMLIMIT.", "resources", container["resources"])
			add("Environment variables of the manager. DROVER_POD names its pod, whose image agents use too.", "env", container["env"])
			add("The chart creates the default priority class. Any other class must already exist; \"\" means none.", "priorityClassName", or(o.text("spec", "template", "spec", "priorityClassName"), ""))
		case o.text("kind") == "ConfigMap" && strings.HasPrefix(o.text("metadata", "name"), configPrefix):
			var config map[string]any
			if err := yaml.Unmarshal([]byte(o.text("data", "config.yaml")), &config); err != nil {
				return nil, err
			}
			delete(config, "namespace") // Helm sets the namespace
			at(config, "server").(map[string]any)["urls"] = []any{}
			add("The configuration. docs/operations/configuration.md describes all keys. Set server.urls to the addresses at which agents and users reach the hub.", "config", config)
		}
	}
	add("Labels of the nodes on which the manager's pods may run.", "nodeSelector", map[string]any{})
	add("Taints that the manager's pods tolerate.", "tolerations", []any{})
	add("How the port for agents and users is exposed: ClusterIP, NodePort or LoadBalancer. nodePort is the port on nodes; by default, the cluster chooses it.", "service",
		map[string]any{"type": "ClusterIP", "nodePort": nil, "externalTrafficPolicy": "Local", "loadBalancerClass": "", "annotations": map[string]any{}})
	add("An Ingress for the hosts of config.server.urls, whose controller must pass TLS through. The default annotations ask common controllers to do so.", "ingress",
		map[string]any{"enabled": false, "className": "nginx", "annotations": map[string]any{
			"nginx.ingress.kubernetes.io/ssl-passthrough": "true", "haproxy.org/ssl-passthrough": "true", "haproxy-ingress.github.io/ssl-passthrough": "true",
		}})
	add("A TLSRoute for the same hosts. parentRefs name your Gateway and its listener: [{name: gateway, namespace: gateway, sectionName: tls}].", "gateway",
		map[string]any{"enabled": false, "parentRefs": []any{}})
	add("Whether the release creates its namespace, with a pod security label. If so, the namespace must not exist before.", "createNamespace", false)
	return out.Bytes(), errors.Join(errs...)
}
