// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/drover-dev/drover/internal/untrusted"
)

// Whole is an object of any kind. It holds only the metadata, the spec and the status of the object, not other fields
// such as the data of a Secret.
//
// Any user with write access to an object in the member can add the labels that the agent watches. A megabyte of JSON
// can become fifty megabytes of maps, so the spec and the status remain JSON until Unstructured is called.
type Whole struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	spec, status stdjson.RawMessage
}

// largestPart returns the limits for a spec and for a status. An object of a Baseline stays within these limits,
// unless other clients make it larger.
func largestPart() untrusted.Bounds {
	return untrusted.Bounds{Bytes: 4 << 20, Nodes: 96 << 10, Depth: 128}
}

// DeepCopyObject implements runtime.Object. Objects are never changed, so it returns the same object.
func (o *Whole) DeepCopyObject() runtime.Object { return o }

// ReadWhole decodes the JSON of an object. The error does not contain any part of the object.
func ReadWhole(raw []byte) (*Whole, error) {
	o := &Whole{}
	err := eachField(raw, func(key string, value stdjson.RawMessage) error {
		switch key { // encoding/json would also accept keys such as "Status"
		case "apiVersion":
			return stdjson.Unmarshal(value, &o.APIVersion)
		case "kind":
			return stdjson.Unmarshal(value, &o.Kind)
		case "metadata":
			return stdjson.Unmarshal(value, &o.ObjectMeta)
		case "spec":
			o.spec = bytes.Clone(value)
		case "status":
			o.status = bytes.Clone(value)
		}
		return nil
	})
	if err != nil { // the cause may quote the object
		return nil, errors.New("decode an object: it is not a Kubernetes object")
	}
	return o, nil
}

// eachField calls f for each field of a JSON object until f returns an error. f must not keep the value.
func eachField(raw []byte, f func(key string, value stdjson.RawMessage) error) error {
	d := stdjson.NewDecoder(bytes.NewReader(raw))
	if start, err := d.Token(); err != nil || start != stdjson.Delim('{') {
		return errors.New("it is not a JSON object")
	}
	var value stdjson.RawMessage
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return err
		}
		if err := d.Decode(&value); err != nil {
			return err
		}
		name, _ := key.(string)
		if err := f(name, value); err != nil {
			return err
		}
	}
	return nil
}

// TooLarge reports whether Unstructured failed because the spec or the status has too many values.
func TooLarge(err error) bool { return errors.Is(err, untrusted.ErrTooLarge) }

// Unstructured decodes the parts of the object that describe its health. The error does not contain any part of the
// object.
func (o *Whole) Unstructured() (*unstructured.Unstructured, error) {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	u.SetAPIVersion(o.APIVersion)
	u.SetKind(o.Kind)
	u.SetNamespace(o.Namespace)
	u.SetName(o.Name)
	u.SetGeneration(o.Generation)
	u.SetCreationTimestamp(o.CreationTimestamp)
	u.SetDeletionTimestamp(o.DeletionTimestamp)
	for field, raw := range map[string]stdjson.RawMessage{"spec": o.spec, "status": o.status} {
		if raw == nil {
			continue
		}
		if err := untrusted.Check(raw, largestPart()); err != nil {
			return nil, fmt.Errorf("decode an object's %s: %w", field, err)
		}
		var part any
		if utiljson.Unmarshal(raw, &part) != nil { // the cause may quote the object
			return nil, fmt.Errorf("decode an object's %s: it cannot be read", field)
		}
		if part != nil {
			u.Object[field] = part
		}
	}
	return u, nil
}

// wholeList is a list of objects of any kind.
type wholeList struct {
	metav1.TypeMeta
	metav1.ListMeta
	Items []*Whole
}

// DeepCopyObject implements runtime.Object.
func (l *wholeList) DeepCopyObject() runtime.Object { return l }

// readWholeList decodes a list of objects of the given kind. The objects in a list do not always contain their kind.
func readWholeList(raw []byte, kind metav1.TypeMeta) (*wholeList, error) {
	l := &wholeList{}
	err := eachField(raw, func(key string, value stdjson.RawMessage) error {
		switch key {
		case "metadata":
			return stdjson.Unmarshal(value, &l.ListMeta)
		case "items":
			var items []stdjson.RawMessage
			if err := stdjson.Unmarshal(value, &items); err != nil {
				return err
			}
			for _, item := range items {
				o, err := ReadWhole(item)
				if err != nil {
					return err
				}
				if o.Kind == "" {
					o.TypeMeta = kind
				}
				l.Items = append(l.Items, o)
			}
		}
		return nil
	})
	return l, err
}

// wholeSerializer decodes objects as Whole. It decodes a Status of the API server as unstructured.Unstructured.
type wholeSerializer struct{ runtime.Serializer }

// Decode implements runtime.Decoder.
func (wholeSerializer) Decode(raw []byte, defaults *schema.GroupVersionKind, into runtime.Object) (
	runtime.Object, *schema.GroupVersionKind, error,
) {
	o, err := ReadWhole(raw)
	if err != nil {
		return nil, nil, err
	}
	kind := o.GroupVersionKind()
	switch item, listed := strings.CutSuffix(o.Kind, "List"); {
	case kind == schema.GroupVersionKind{Version: "v1", Kind: "Status"}:
		return unstructured.UnstructuredJSONScheme.Decode(raw, defaults, into)
	case listed && o.Name == "": // every other object has a name
		list, err := readWholeList(raw, metav1.TypeMeta{APIVersion: o.APIVersion, Kind: item})
		return list, &kind, err
	}
	return o, &kind, nil
}

// anyKind is a serializer for objects of any kind. It decodes them as Whole.
type anyKind struct{ info runtime.SerializerInfo }

func newAnyKind() anyKind {
	events := runtime.NewScheme()
	metav1.AddToGroupVersion(events, metav1.Unversioned)
	return anyKind{info: runtime.SerializerInfo{
		MediaType: runtime.ContentTypeJSON, MediaTypeType: "application", MediaTypeSubType: "json", EncodesAsText: true,
		Serializer: wholeSerializer{unstructured.UnstructuredJSONScheme},
		StreamSerializer: &runtime.StreamSerializerInfo{EncodesAsText: true, Framer: json.Framer,
			Serializer: json.NewSerializerWithOptions(json.DefaultMetaFactory, events, events, json.SerializerOptions{})},
	}}
}

// SupportedMediaTypes implements runtime.NegotiatedSerializer.
func (a anyKind) SupportedMediaTypes() []runtime.SerializerInfo {
	return []runtime.SerializerInfo{a.info}
}

// EncoderForVersion implements runtime.NegotiatedSerializer.
func (a anyKind) EncoderForVersion(e runtime.Encoder, _ runtime.GroupVersioner) runtime.Encoder {
	return e
}

// DecoderToVersion implements runtime.NegotiatedSerializer.
func (a anyKind) DecoderToVersion(d runtime.Decoder, _ runtime.GroupVersioner) runtime.Decoder {
	return d
}
