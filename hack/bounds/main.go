// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Command bounds adds missing size limits to the specs in generated CRDs.
//
// Markers set the limits for fields that Drover defines. They cannot set limits for fields of Kubernetes types, such as
// selectors, affinities and environment variables. "make generate" runs this command.
package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"

	"sigs.k8s.io/yaml"
)

// Limits that real values never reach. Linux accepts at most 128 KiB for an argument or environment variable, and API
// servers accept at most 256 KiB of annotations.
const (
	maxItems      = 1024
	maxProperties = 256
	maxText       = 4096
	maxSyntax     = 256 // for values in formats with a fixed syntax
	maxLong       = 64 << 10
	maxAnnotation = 256 << 10
)

func main() {
	for _, path := range os.Args[1:] {
		if err := bound(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

// bound adds bounds to the specs in a CRD file.
func bound(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var crd map[string]any
	if err := yaml.Unmarshal(text, &crd); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	versions, _ := at(crd, "spec")["versions"].([]any)
	for _, version := range versions {
		version, _ := version.(map[string]any)
		walk("spec", at(version, "schema", "openAPIV3Schema", "properties", "spec"))
	}
	out, err := yaml.Marshal(crd)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return os.WriteFile(path, append(bytes.Clone([]byte("---\n")), out...), 0o644)
}

func at(object map[string]any, path ...string) map[string]any {
	for _, key := range path {
		object, _ = object[key].(map[string]any)
	}
	return object
}

// walk adds bounds to a schema and to all nested schemas. name is the name of the field. [] is appended to it for the
// items of a list, and {} for the values of a map.
func walk(name string, schema map[string]any) {
	text := schema["type"] == "string" || schema["x-kubernetes-int-or-string"] == true
	switch {
	case text && schema["enum"] == nil:
		set(schema, "maxLength", longest(name, schema))
	case schema["type"] == "array":
		set(schema, "maxItems", maxItems)
		walk(name+"[]", at(schema, "items"))
	case schema["type"] == "object":
		for field, below := range at(schema, "properties") {
			below, _ := below.(map[string]any)
			walk(field, below)
		}
		if values := at(schema, "additionalProperties"); values != nil {
			set(schema, "maxProperties", maxProperties)
			walk(name+"{}", values)
		}
	}
}

func set(schema map[string]any, bound string, to int) {
	if _, has := schema[bound]; !has {
		schema[bound] = to
	}
}

// longest returns the maximum length of a text field.
func longest(name string, schema map[string]any) int {
	switch {
	case name == "annotations{}":
		return maxAnnotation
	case name == "args[]" || name == "command[]" || name == "value" || strings.HasPrefix(name, "gmsaCredentialSpec"):
		return maxLong
	case schema["pattern"] != nil || schema["format"] != nil || schema["x-kubernetes-validations"] != nil || schema["x-kubernetes-int-or-string"] != nil:
		return maxSyntax
	}
	return maxText
}
