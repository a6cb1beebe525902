// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package baseline

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/untrusted"
)

// Limits for the objects of a Baseline.
const (
	// MaxObjects is the maximum number of objects.
	MaxObjects = 1000
	// MaxKinds is the maximum number of kinds. The agent watches each kind.
	MaxKinds = 64
	// MaxSize is the maximum total size of the objects' JSON, in bytes.
	MaxSize = 4 << 20
)

// bounds returns the limits for a YAML document. The largest CustomResourceDefinitions of common controllers contain
// 40,000 values.
func bounds() untrusted.Bounds { return untrusted.Bounds{Bytes: 1 << 20, Nodes: 96 << 10, Depth: 64} }

// Source is a stream of YAML or JSON documents.
type Source struct {
	// Name is the name of the source in errors, such as "ConfigMap cni, key calico.yaml".
	Name string
	Text []byte
	// Public is true if everyone who can read the Baseline can read the text. It must not contain Secrets.
	Public bool
}

// Parse reads the objects of a Baseline from their sources. It returns the objects as canonical JSON, in the order of
// the sources, without fields that only an API server sets. An object of kind List is replaced by its items. Errors
// identify the source and the object, but contain no other part of the text.
func Parse(sources []Source) ([]json.RawMessage, error) {
	p := parser{seen: map[string]struct{}{}, kinds: map[string]struct{}{}}
	for _, source := range sources {
		i := 0
		for document := range documents(source.Text) {
			i++
			if err := p.document(document, source.Public); err != nil {
				return nil, fmt.Errorf("%s, document %d: %w", source.Name, i, err)
			}
		}
	}
	if len(p.objects) == 0 {
		return nil, errors.New("there is no object: add at least one")
	}
	return p.objects, nil
}

type parser struct {
	objects     []json.RawMessage
	size        int
	seen, kinds map[string]struct{}
}

func (p *parser) document(text []byte, public bool) error {
	raw, err := untrusted.AsJSON(text, bounds())
	if err != nil {
		return err
	}
	if bytes.Equal(raw, []byte("null")) { // a document with only comments
		return nil
	}
	o, err := Decode(raw)
	if err != nil {
		return err
	}
	if o.GetKind() != "List" || o.GetAPIVersion() != "v1" {
		return p.add(o, public)
	}
	items, _, err := unstructured.NestedSlice(o.Object, "items")
	if err != nil {
		return errors.New("the items of the List are not a list")
	}
	for i, item := range items {
		fields, ok := item.(map[string]any)
		if !ok {
			return fmt.Errorf("item %d of the List is not an object", i)
		}
		if err := p.add(&unstructured.Unstructured{Object: fields}, public); err != nil {
			return err
		}
	}
	return nil
}

// serverFields returns the metadata that only an API server sets. Objects that were read from a cluster contain it.
func serverFields() []string {
	return []string{
		"creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "generation", "managedFields",
		"resourceVersion", "selfLink", "uid",
	}
}

func (p *parser) add(o *unstructured.Unstructured, public bool) error {
	metadata, ok := o.Object["metadata"].(map[string]any)
	if !ok {
		return errors.New("an object has no metadata")
	}
	for _, field := range serverFields() {
		delete(metadata, field)
	}
	delete(o.Object, "status")
	name := nameOf(o)
	if reason := Refuse(o); reason != "" {
		return fmt.Errorf("%s: %s", name, reason)
	}
	if public && (o.GetKind() == "Secret" || o.GetKind() == "SecretList") {
		return fmt.Errorf("%s: everyone who can read the Baseline could read it: put it into a Secret and name that in from",
			name)
	}
	for key := range o.GetLabels() {
		if key == v1.LabelBaseline || key == v1.LabelSet {
			return fmt.Errorf("%s: only Drover sets the label %s", name, key)
		}
	}
	kind := Group(o.GetAPIVersion()) + " " + o.GetKind()
	identity := kind + " " + o.GetNamespace() + "/" + o.GetName() // the result of nameOf may be truncated
	if _, twice := p.seen[identity]; twice {
		return fmt.Errorf("%s: it is listed twice", name)
	}
	p.seen[identity], p.kinds[kind] = struct{}{}, struct{}{}
	raw, err := json.Marshal(o.Object)
	if err != nil {
		return fmt.Errorf("%s: it cannot be written as JSON", name)
	}
	p.objects, p.size = append(p.objects, raw), p.size+len(raw)
	switch {
	case len(p.objects) > MaxObjects:
		return fmt.Errorf("a Baseline has at most %d objects: split it", MaxObjects)
	case len(p.kinds) > MaxKinds:
		return fmt.Errorf("a Baseline has objects of at most %d kinds: split it", MaxKinds)
	case p.size > MaxSize:
		return fmt.Errorf("a Baseline has at most %d bytes of objects: split it", MaxSize)
	}
	return nil
}

// maxName is the maximum length of a name in an error, in bytes.
const maxName = 256

// nameOf returns the kind, namespace and name of an object, for example "Deployment kube-system/metrics-server".
func nameOf(o *unstructured.Unstructured) string {
	name := o.GetKind() + " " + o.GetName()
	if namespace := o.GetNamespace(); namespace != "" {
		name = o.GetKind() + " " + namespace + "/" + o.GetName()
	}
	return strings.ToValidUTF8(name[:min(len(name), maxName)], "")
}

// documents returns the documents of a YAML stream. A line that begins with "---" or "..." separates documents,
// wherever it occurs: YAML does not allow such a line inside a document.
func documents(text []byte) func(yield func([]byte) bool) {
	return func(yield func([]byte) bool) {
		var document [][]byte
		for line := range bytes.Lines(text) {
			rest, ends := separator(line)
			if !ends {
				document = append(document, line)
				continue
			}
			if !blank(document) && !yield(bytes.Join(document, nil)) {
				return
			}
			document = document[:0]
			if len(rest) > 0 {
				document = append(document, rest)
			}
		}
		if !blank(document) {
			yield(bytes.Join(document, nil))
		}
	}
}

// separator reports whether a line separates documents, and returns the part of the line that belongs to the next
// document.
func separator(line []byte) (rest []byte, ends bool) {
	for _, mark := range []string{"---", "..."} {
		if rest, ends = bytes.CutPrefix(line, []byte(mark)); ends {
			return rest, len(rest) == 0 || slices.Contains([]byte(" \t\r\n"), rest[0])
		}
	}
	return nil, false
}

func blank(document [][]byte) bool {
	return !slices.ContainsFunc(document, func(line []byte) bool { return len(bytes.TrimSpace(line)) > 0 })
}
