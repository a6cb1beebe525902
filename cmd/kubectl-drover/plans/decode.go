// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plans

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unicode"
)

// explainDecoding replaces the Go types in a YAML or JSON decoding error with the names of fields and JSON types.
func explainDecoding(err error) error {
	if err == nil {
		return nil
	}
	if wrong := (*json.UnmarshalTypeError)(nil); errors.As(err, &wrong) {
		place := fieldOf(wrong.Field)
		if place == "" {
			place = "the document"
		}
		return fmt.Errorf("%s is %s, but must be %s", place, valueOf(wrong.Value), wantedOf(wrong.Type))
	}
	text := err.Error()
	for _, prefix := range []string{
		"error unmarshaling JSON: ", "error converting YAML to JSON: ", "while decoding JSON: ", "json: ",
	} {
		text = strings.TrimPrefix(text, prefix)
	}
	if rest, is := strings.CutPrefix(text, "time: "); is {
		text = rest + ": use a duration such as 90s, 10m or 8h"
	}
	return errors.New(text)
}

// fieldOf returns the path of a field. It omits the names of embedded Go structs, which start with a capital letter.
func fieldOf(path string) string {
	parts := slices.DeleteFunc(strings.Split(path, "."), func(part string) bool {
		return part == "" || unicode.IsUpper(rune(part[0]))
	})
	return strings.Join(parts, ".")
}

// valueOf describes a JSON value, for example "string" or "number 1.5".
func valueOf(found string) string {
	kind, rest, _ := strings.Cut(found, " ")
	name, known := map[string]string{"string": "text", "number": "a number", "array": "a list", "object": "an object",
		"bool": "true or false"}[kind]
	if !known {
		return found
	}
	return strings.TrimSpace(name + " " + rest)
}

// wantedOf describes the values that a Go type accepts.
func wantedOf(t reflect.Type) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.String:
		return "text"
	case reflect.Bool:
		return "true or false"
	case reflect.Struct, reflect.Map, reflect.Interface:
		return "an object"
	default:
		return "a whole number"
	}
}
