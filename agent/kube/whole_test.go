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
	u, err := o.Unstructured()
	if err != nil {
		t.Fatal(err)
	}
	n, _, _ := unstructured.NestedInt64(u.Object, "spec", "n")
	x, _, _ := unstructured.NestedString(u.Object, "status", "x")
	if o.Kind != "Pod" || o.Namespace != "web" || o.Name != "a" || o.ResourceVersion != "7" || n != 3 || x != "y" ||
		u.Object["data"] != nil {
		t.Errorf("got %+v, want the Pod web/a, its spec and its status, whatever other fields are called", u)
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

// allocated returns the number of bytes that f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// Decoding enlarges these texts most. Any user in the member can have the agent read them.
func TestMemoryOfDecodingAnObjectIsLimited(t *testing.T) {
	some := func(unit string, n int) string { return "[" + strings.Repeat(unit+",", n) + unit + "]" }
	many := func(unit string) string { return some(unit, 1_400_000/(len(unit)+1)) }
	fields := `{"manager":"a","operation":"Update","fieldsV1":{"f:data":{` +
		strings.Repeat(`"f:k":{},`, 150_000) + `"f:l":{}}}`
	const kept, tooLarge, none = "kept", "too large", "none"
	deep, maps := strings.Repeat("[", 9_000)+strings.Repeat("]", 9_000), some(`{"":0}`, 31_999)
	for name, tt := range map[string]struct{ text, want string }{
		"a status of empty lists":  {pod + `},"status":` + many("[]") + `}`, tooLarge},
		"a spec of empty maps":     {pod + `},"spec":` + many("{}") + `}`, tooLarge},
		"a spec of maps":           {pod + `},"spec":` + many(`{"":0}`) + `}`, tooLarge},
		"numbers":                  {pod + `},"spec":` + many("1") + `}`, tooLarge},
		"deep nesting":             {pod + `},"spec":` + deep + `}`, tooLarge},
		"other fields":             {pod + `},"data":` + many("{}") + `}`, none},
		"many fields":              {pod + `}` + strings.Repeat(`,"k":1`, 230_000) + `}`, none},
		"managed fields":           {pod + `,"managedFields":[` + fields + `}]}}`, none},
		"the most maps":            {pod + `},"spec":` + maps + `}`, kept},
		"the most maps, two parts": {pod + `},"spec":` + maps + `,"status":` + maps + `}`, kept},
		"the most empty lists":     {pod + `},"spec":` + some("[]", 48_000) + `}`, kept},
	} {
		ceiling := uint64(32 << 20)
		if name == "many fields" { // the decoder allocates each name, and nothing keeps it
			ceiling = 64 << 20
		}
		var o *Whole
		var err error
		if got := allocated(func() { o, err = ReadWhole([]byte(tt.text)) }); got > ceiling {
			t.Errorf("%s: reading %d bytes allocated %d, want at most %d", name, len(tt.text), got, ceiling)
		}
		if err != nil || o.Name != "a" {
			t.Fatalf("%s: got %+v and the error %v, want the object a", name, o, err)
		}
		var u *unstructured.Unstructured
		if got := allocated(func() { u, err = o.Unstructured() }); got > ceiling {
			t.Errorf("%s: decoding %d bytes allocated %d, want at most %d", name, len(tt.text), got, ceiling)
		}
		if large := TooLarge(err); large != (tt.want == tooLarge) {
			t.Errorf("%s: got the error %v, want the object %s", name, err, tt.want)
		}
		if err == nil && (u.Object["spec"] != nil) != (tt.want == kept) {
			t.Errorf("%s: got a spec %t, want the object %s", name, u.Object["spec"] != nil, tt.want)
		}
	}
}

// A page of a list is in memory as a whole.
func TestAPageOfAListIsNotDecoded(t *testing.T) {
	const objects = 10
	item := `{"metadata":{"namespace":"web","name":"a"},"spec":[` + strings.Repeat(`{"":0},`, 32_000) + `0]}`
	raw := []byte(`{"apiVersion":"v1","kind":"PodList","items":[` + strings.Repeat(item+",", objects-1) + item + `]}`)
	var err error
	got := allocated(func() { _, err = apiruntime.Decode(newAnyKind().info.Serializer, raw) })
	if limit := uint64(24 * len(raw)); err != nil || got > limit {
		t.Errorf("reading a page of %d bytes allocated %d (%v), want at most %d", len(raw), got, err, limit)
	}
}
