// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"runtime"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
)

const pod = `{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"web","name":"a","resourceVersion":"7"`

func TestAWholeObjectHasOnlyItsOwnFields(t *testing.T) {
	o, err := ReadWhole([]byte(pod + `},"spec":{"n":3},"status":{"x":"y"},"data":{"a":1},"Status":{},` +
		`"METADATA":{"name":"b"}}`))
	if err != nil {
		t.Fatal(err)
	}
	spec, _ := o.Spec.(map[string]any)
	status, _ := o.Status.(map[string]any)
	if o.Kind != "Pod" || o.Namespace != "web" || o.Name != "a" || o.ResourceVersion != "7" || spec["n"] != int64(3) ||
		status["x"] != "y" {
		t.Errorf("got %+v, want the Pod web/a, its spec and its status, whatever other fields are called", o)
	}
	for _, text := range []string{``, `[]`, `{"metadata":3}`, `{"spec":`, `null`} {
		if _, err := ReadWhole([]byte(text)); err == nil {
			t.Errorf("%q: got no error, want one", text)
		}
	}
}

func TestObjectsOfAListHaveTheKindOfTheList(t *testing.T) {
	s := newAnyKind().info.Serializer
	got, err := apiruntime.Decode(s, []byte(`{"apiVersion":"v1","kind":"PodList",
		"metadata":{"resourceVersion":"9"},"items":[{"metadata":{"name":"a"}},
		{"kind":"Node","apiVersion":"v1","metadata":{"name":"b"}}]}`))
	list, is := got.(*wholeList)
	if err != nil || !is || list.ResourceVersion != "9" || len(list.Items) != 2 || list.Items[0].Kind != "Pod" ||
		list.Items[0].APIVersion != "v1" || list.Items[1].Kind != "Node" {
		t.Fatalf("got %+v and the error %v, want a Pod and a Node", got, err)
	}
	got, err = apiruntime.Decode(s, []byte(pod+`},"items":[{"metadata":{"name":"b"}}]}`))
	if one, is := got.(*Whole); err != nil || !is || one.Name != "a" {
		t.Errorf("got %T and the error %v, want one object, although it has a field items", got, err)
	}
	got, err = apiruntime.Decode(s, []byte(`{"apiVersion":"v1","kind":"Status","code":410,"reason":"Expired"}`))
	if u, is := got.(*unstructured.Unstructured); err != nil || !is || u.Object["reason"] != "Expired" {
		t.Errorf("got %+v and the error %v, want the whole Status", got, err)
	}
}

// Decoding enlarges these texts most. Any user in the member can have the agent read them.
func TestMemoryOfDecodingAnObjectIsLimited(t *testing.T) {
	many := func(unit string) string { return "[" + strings.Repeat(unit+",", 1_400_000/(len(unit)+1)) + unit + "]" }
	fields := `{"manager":"a","operation":"Update","fieldsV1":{"f:data":{` +
		strings.Repeat(`"f:k":{},`, 150_000) + `"f:l":{}}}`
	for name, text := range map[string]string{
		"a status of empty lists": pod + `},"status":` + many("[]") + `}`,
		"a spec of empty maps":    pod + `},"spec":` + many("{}") + `}`,
		"numbers":                 pod + `},"spec":` + many("1") + `}`,
		"deep nesting":            pod + `},"spec":` + strings.Repeat("[", 9_000) + strings.Repeat("]", 9_000) + `}`,
		"other fields":            pod + `},"data":` + many("{}") + `}`,
		"many fields":             pod + `}` + strings.Repeat(`,"k":1`, 230_000) + `}`,
		"managed fields":          pod + `,"managedFields":[` + fields + `}]}}`,
	} {
		ceiling := uint64(24 << 20)
		if name == "many fields" { // the decoder allocates each name, and nothing keeps it
			ceiling = 64 << 20
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		o, err := ReadWhole([]byte(text))
		runtime.ReadMemStats(&after)
		if got := after.TotalAlloc - before.TotalAlloc; got > ceiling {
			t.Errorf("%s: decoding %d bytes allocated %d, want at most %d", name, len(text), got, ceiling)
		}
		if err != nil || o.Name != "a" || o.Spec != nil || o.Status != nil {
			t.Errorf("%s: got %v, want the metadata only", name, err)
		}
		if large := name != "other fields" && name != "many fields" && name != "managed fields"; o.TooLarge != large {
			t.Errorf("%s: got too large %t, want %t", name, o.TooLarge, large)
		}
	}
}
