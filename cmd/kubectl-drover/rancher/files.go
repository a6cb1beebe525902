// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rancher

import (
	"fmt"
	"maps"
	"path"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

// Names of files and folders in the export folder.
const (
	ReportFile        = "REPORT.md"
	PrincipalsFile    = "principals.yaml"
	kustomizationFile = "kustomization.yaml"
	// SecretsFolder contains the values of Secrets. It is not part of the kustomization, and it must not be committed
	// to Git.
	SecretsFolder = "secrets"
)

// Files returns the contents of the exported files by path.
func (r Result) Files() (map[string][]byte, error) {
	files := map[string][]byte{ReportFile: r.Report.Markdown()}
	for _, o := range slices.Concat(r.Objects, r.Secrets) {
		text, err := object(o)
		if err != nil {
			return nil, fmt.Errorf("write %s: %w", o.Path, err)
		}
		if _, twice := files[o.Path]; twice {
			return nil, fmt.Errorf("two objects have the file %s, one of them is %s", o.Path, ascii(o.Origin))
		}
		files[o.Path] = text
	}
	kustomizations(files, r.Objects, "")
	if len(r.Secrets) > 0 {
		kustomizations(files, r.Secrets, SecretsFolder)
		files[path.Join(SecretsFolder, ".gitignore")] = []byte("# Values of Secrets: do not commit them.\n*\n")
	}
	text, err := r.Mapping.YAML()
	if err != nil {
		return nil, err
	}
	files[PrincipalsFile] = text
	return files, nil
}

// object returns the YAML of an object. It removes the fields that only an API server sets.
func object(o Output) ([]byte, error) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o.Object)
	if err != nil {
		return nil, fmt.Errorf("convert: %w", err)
	}
	delete(fields, "status")
	if meta, ok := fields["metadata"].(map[string]any); ok {
		delete(meta, "creationTimestamp")
	}
	if spec, ok := fields["spec"].(map[string]any); ok && fields["kind"] == "Cluster" {
		delete(spec, "registration") // otherwise, unset fields would appear as empty objects
		delete(spec, "agent")
	}
	text, err := yaml.Marshal(fields)
	if err != nil {
		return nil, fmt.Errorf("write YAML: %w", err)
	}
	return append([]byte("# From Rancher: "+ascii(o.Origin)+"\n"), text...), nil
}

// kustomizations adds a kustomization to the top folder, and to each folder below it that contains objects or other
// folders.
func kustomizations(files map[string][]byte, objects []Output, top string) {
	folders := map[string]map[string]bool{top: {}}
	for _, o := range objects {
		dir, name := path.Split(o.Path)
		for dir = path.Clean(dir); ; dir, name = path.Dir(dir), path.Base(dir) {
			if dir == "." || dir == top {
				folders[top][name] = true
				break
			}
			if folders[dir] == nil {
				folders[dir] = map[string]bool{}
			}
			folders[dir][name] = true
		}
	}
	for dir, resources := range folders {
		text := "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:"
		if len(resources) == 0 {
			text += " []"
		}
		for _, name := range slices.Sorted(maps.Keys(resources)) {
			text += "\n- " + name
		}
		files[path.Join(dir, kustomizationFile)] = []byte(text + "\n")
	}
}
