// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
)

// anyKind is a serializer for objects of any kind. It decodes them as unstructured.Unstructured.
type anyKind struct{ info runtime.SerializerInfo }

func newAnyKind() anyKind {
	events := runtime.NewScheme()
	metav1.AddToGroupVersion(events, metav1.Unversioned)
	return anyKind{info: runtime.SerializerInfo{
		MediaType: runtime.ContentTypeJSON, MediaTypeType: "application", MediaTypeSubType: "json", EncodesAsText: true,
		Serializer: unstructured.UnstructuredJSONScheme,
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
