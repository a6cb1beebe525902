// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol_test

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover/internal/protocol"
)

// An agent chooses each text of a line, and the hub keeps the line for each member. The test finds new fields of a line
// on its own.
func TestEveryTextOfALineIsTrimmed(t *testing.T) {
	t.Parallel()
	const long, most = 64 << 10, 8 << 10
	line := &protocol.Line{}
	fill(reflect.ValueOf(line).Elem(), strings.Repeat("x", long))
	line.Bound()
	texts := 0
	walk("Line", reflect.ValueOf(line).Elem(), func(path, text string) {
		if texts++; len(text) > most {
			t.Errorf("%s keeps %d bytes, want at most %d", path, len(text), most)
		}
	})
	if texts < 50 {
		t.Errorf("the test found %d texts, want all texts of a line, which are 50 or more", texts)
	}
}

// fill sets every text in a value to the given one, and puts one item into each list and map.
func fill(v reflect.Value, text string) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), text)
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Unix(1_800_000_000, 0)))
			return
		}
		for i := range v.NumField() {
			fill(v.Field(i), text)
		}
		if stage := v.FieldByName("Stage"); stage.IsValid() { // others would be dropped
			stage.SetString("Draining")
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), text)
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, text)
		fill(value, text)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	}
}

// walk calls see for each text in a value.
func walk(path string, v reflect.Value, see func(path, text string)) {
	switch v.Kind() {
	case reflect.String:
		see(path, v.String())
	case reflect.Pointer:
		if !v.IsNil() {
			walk(path, v.Elem(), see)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			walk(path+"."+v.Type().Field(i).Name, v.Field(i), see)
		}
	case reflect.Slice:
		for i := range v.Len() {
			walk(path+"[]", v.Index(i), see)
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			walk(path+" key", key, see)
			walk(path+"[]", v.MapIndex(key), see)
		}
	}
}
