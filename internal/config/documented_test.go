// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/drover-dev/drover/internal/config"
)

// TestEveryKeyIsDocumented looks for each key of the file in the table of docs/operations/configuration.md. The table
// abbreviates "a.b, a.c" as "a.b, .c".
func TestEveryKeyIsDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/operations/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile("(?m)^\\| (`.*?) \\|").FindAllStringSubmatch(string(text), -1)
	found := 0
	for _, key := range keys(reflect.TypeFor[config.Config](), "") {
		top, _, _ := strings.Cut(key, ".")
		last := regexp.MustCompile("[`.]" + key[strings.LastIndexByte(key, '.')+1:] + "`")
		known := false
		for _, row := range rows {
			known = known || strings.HasPrefix(row[1], "`"+top) && last.MatchString(row[1])
		}
		if !known {
			t.Errorf("docs/operations/configuration.md has no key %s", key)
		}
		found++
	}
	if found < 25 {
		t.Errorf("only %d keys were found, want at least 25", found)
	}
}

// keys returns the keys of a type, such as server.listen.
func keys(kind reflect.Type, prefix string) []string {
	for kind.Kind() == reflect.Pointer {
		kind = kind.Elem()
	}
	if kind.Kind() != reflect.Struct || kind == reflect.TypeFor[metav1.Duration]() {
		return []string{prefix}
	}
	var all []string
	for field := range kind.Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if field.Type == reflect.TypeFor[config.Program]() {
			all = append(all, keys(field.Type, prefix)...)
			continue
		}
		if name == "" { // apiVersion and kind
			continue
		}
		all = append(all, keys(field.Type, strings.TrimPrefix(prefix+"."+name, "."))...)
	}
	return all
}
