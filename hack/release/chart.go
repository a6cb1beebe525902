// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

// chartFiles are the files of the chart that are not generated from the manifests.
//
//go:embed all:chart
var chartFiles embed.FS

// Names in the manifests that the chart replaces with values.
const (
	manifestNamespace = "drover-system"
	configPrefix      = "drover-config-"
)

// object is a Kubernetes object in the manifests.
type object map[string]any

func (o object) text(path ...string) string {
	value, _ := at(o, path...).(string)
	return value
}

// at returns the value at a path of keys. It returns nil if there is none.
func at(value any, path ...string) any {
	for _, key := range path {
		switch v := value.(type) {
		case object:
			value = v[key]
		case map[string]any:
			value = v[key]
		default:
			return nil
		}
	}
	return value
}

// manifests builds a kustomization and returns its objects.
func manifests(ctx context.Context, root, dir string) ([]object, error) {
	build := exec.CommandContext(ctx, "go", "tool", "-modfile=hack/tools/kustomize.mod", "kustomize", "build", dir)
	build.Dir = root
	var problems bytes.Buffer
	build.Stderr = &problems
	out, err := build.Output()
	if err != nil {
		return nil, fmt.Errorf("kustomize build %s: %w: %s", dir, err, problems.String())
	}
	return objects(out)
}

func objects(stream []byte) ([]object, error) {
	var all []object
	for _, document := range bytes.Split(append([]byte("\n"), stream...), []byte("\n---")) {
		var o object
		if err := yaml.Unmarshal(document, &o); err != nil {
			return nil, err
		}
		if len(o) > 0 {
			all = append(all, o)
		}
	}
	return all, nil
}

// chart generates the Helm chart from the manifests, and writes it to dist/chart.
func (r release) chart(ctx context.Context) error {
	all, err := manifests(ctx, r.root, "config/default")
	if err != nil {
		return err
	}
	dir := filepath.Join(r.dist, "chart")
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	files := map[string][]byte{}
	for _, name := range []string{"README.md", "values.schema.json", "templates/_helpers.tpl", "templates/NOTES.txt",
		"templates/ingress.yaml", "templates/tlsroute.yaml"} {
		if files[name], err = chartFiles.ReadFile("chart/" + name); err != nil {
			return err
		}
	}
	if files["values.yaml"], err = r.values(all); err != nil {
		return err
	}
	if files["Chart.yaml"], err = r.chartYAML(); err != nil {
		return err
	}
	for _, o := range all {
		name, text, err := template(o)
		if err != nil {
			return err
		}
		if _, twice := files[name]; twice {
			return fmt.Errorf("two manifests would be %s of the chart", name)
		}
		files[name] = text
	}
	for name, text := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, text, 0o644)); err != nil {
			return err
		}
	}
	say("wrote %s", dir)
	return nil
}

func (r release) chartYAML() ([]byte, error) {
	return yaml.Marshal(map[string]any{
		"apiVersion": "v2", "name": "drover", "type": "application", "version": strings.TrimPrefix(r.version, "v"), "appVersion": r.version,
		"description": "Manages many Kubernetes clusters from one", "home": "https://github.com/drover-dev/drover", "kubeVersion": ">=" + oldestKubernetes + "-0",
	})
}

// template returns the chart file for a manifest. CRDs are not templates, because Helm installs them before
// everything else.
func template(o object) (name string, text []byte, err error) {
	if o.text("kind") == "CustomResourceDefinition" {
		text, err = yaml.Marshal(o)
		return "crds/" + o.text("metadata", "name") + ".yaml", text, err
	}
	name = "templates/" + strings.ToLower(o.text("kind")) + "-" + strings.ReplaceAll(o.text("metadata", "name"), ":", "-") + ".yaml"
	var opens []opening
	switch {
	case o.text("kind") == "Namespace":
		opens = []opening{{before: "{{- if .Values.createNamespace }}\n", after: "{{- end }}\n"}}
	case o.text("kind") == "ConfigMap" && strings.HasPrefix(o.text("metadata", "name"), configPrefix):
		name, opens = "templates/configmap-drover-config.yaml", configOpenings(o)
	case o.text("kind") == "Deployment":
		opens, err = deploymentOpenings(o)
	case o.text("kind") == "Service" && o.text("metadata", "name") == "drover":
		opens = serviceOpenings(o)
	case o.text("kind") == "PriorityClass":
		opens = []opening{{before: "{{- if eq .Values.priorityClassName " + quote(o.text("metadata", "name")) + " }}\n", after: "{{- end }}\n"}}
	}
	if err != nil {
		return "", nil, err
	}
	raw, err := yaml.Marshal(o)
	if err != nil {
		return "", nil, err
	}
	return name, open(raw, opens), nil
}
