// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package untrusted

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"go.yaml.in/yaml/v3"
)

// marksPerNode is the number of marks that a YAML text may contain for each permitted node. A script in a block
// scalar has many marks but is only one node.
const marksPerNode = 4

// marksPerDirective is the number of marks that one directive counts as. The parser compares each %TAG directive with
// all earlier directives, so it takes seconds to parse 50,000 of them.
const marksPerDirective = 16

// AsJSON converts the first document of a YAML text to JSON in the same way as sigs.k8s.io/yaml. It rejects features
// that can hide content from a reader or repeat content: anchors, aliases, merge keys, tags and duplicate keys. The
// YAML 1.1 booleans, such as yes and off, are treated as strings.
//
// Its errors do not contain any part of the text.
func AsJSON(raw []byte, bounds Bounds) ([]byte, error) {
	if len(raw) > bounds.Bytes {
		return nil, fmt.Errorf("%w: it has more than %d bytes", ErrTooLarge, bounds.Bytes)
	}
	if most := bounds.Nodes * marksPerNode; marks(raw) > most {
		return nil, fmt.Errorf("%w: it has more than %d items and commas", ErrTooLarge, most)
	}
	var document yaml.Node
	// the text is decoded into a Node, because a Node represents each alias as a single node
	if err := yaml.Unmarshal(raw, &document); err != nil {
		return nil, errors.New("it is not YAML")
	}
	if len(document.Content) != 1 {
		return []byte("null"), nil
	}
	w := writer{nodes: bounds.Nodes}
	w.out.Grow(len(raw) + len(raw)/8)
	w.encoder = json.NewEncoder(&w.out)
	w.encoder.SetEscapeHTML(false) // with escaping, one byte of text could become six
	if err := w.node(document.Content[0], bounds.Depth); err != nil {
		return nil, err
	}
	return w.out.Bytes(), nil
}

// marks counts the positions in a YAML text at which an item, an entry, a comment or a directive starts. Each mark
// represents at most three nodes.
func marks(raw []byte) int {
	count := 1
	for i, c := range raw {
		switch c {
		case '[', '{', ',':
			count++
		case '%':
			if i == 0 || endsLine(raw[i-1]) {
				count += marksPerDirective
			}
		case '#': // each comment is stored separately
			if i == 0 || raw[i-1] <= ' ' || raw[i-1] >= 0x80 {
				count++
			}
		case '-', '?', ':':
			if i+1 == len(raw) || raw[i+1] <= ' ' || raw[i+1] >= 0x80 {
				count++
			}
		}
	}
	return count
}

// endsLine reports whether a byte may end a line of YAML. Non-ASCII bytes are included, because they can be part of
// YAML's other line breaks or of the byte order mark. The zero byte is included, because it is next to a line feed in
// UTF-16.
func endsLine(c byte) bool { return c == '\n' || c == '\r' || c == 0 || c >= 0x80 }

type writer struct {
	out     bytes.Buffer
	encoder *json.Encoder
	nodes   int // number of nodes that may still be written
}

// Errors for rejected YAML.
var (
	errAlias = errors.New("it contains a YAML anchor or alias, which is not accepted here: write the value out")
	errTag   = errors.New("it contains a YAML tag, such as !!binary, which is not accepted here")
	errKey   = errors.New("one of its keys is a duplicate or not a string")
	errValue = errors.New("one of its values cannot be written as JSON")
)

func (w *writer) node(n *yaml.Node, depth int) error {
	if w.nodes--; w.nodes < 0 {
		return fmt.Errorf("%w: it has too many values", ErrTooLarge)
	}
	switch {
	case n.Kind == yaml.AliasNode || n.Anchor != "":
		return errAlias
	case n.Style&yaml.TaggedStyle != 0:
		return errTag
	case n.Kind == yaml.ScalarNode:
		return w.scalar(n)
	case depth == 0:
		return fmt.Errorf("%w: it is nested too deeply", ErrTooLarge)
	case n.Kind == yaml.SequenceNode:
		return w.sequence(n, depth-1)
	}
	return w.mapping(n, depth-1)
}

func (w *writer) sequence(n *yaml.Node, depth int) error {
	w.out.WriteByte('[')
	for i, item := range n.Content {
		if i > 0 {
			w.out.WriteByte(',')
		}
		if err := w.node(item, depth); err != nil {
			return err
		}
	}
	w.out.WriteByte(']')
	return nil
}

func (w *writer) mapping(n *yaml.Node, depth int) error {
	seen := make(map[string]struct{}, len(n.Content)/2)
	w.out.WriteByte('{')
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		if key.Kind == yaml.AliasNode || key.Anchor != "" {
			return errAlias
		}
		_, twice := seen[key.Value]
		if key.Kind != yaml.ScalarNode || key.Style&yaml.TaggedStyle != 0 || key.Tag == "!!merge" || twice {
			return errKey
		}
		if seen[key.Value] = struct{}{}; i > 0 {
			w.out.WriteByte(',')
		}
		if w.nodes--; w.nodes < 0 {
			return fmt.Errorf("%w: it has too many values", ErrTooLarge)
		}
		if err := w.value(key.Value); err != nil {
			return err
		}
		w.out.WriteByte(':')
		if err := w.node(n.Content[i+1], depth); err != nil {
			return err
		}
	}
	w.out.WriteByte('}')
	return nil
}

// scalar writes the value of a scalar: a string, a number, a boolean or null. A date is treated as a string, as in
// sigs.k8s.io/yaml.
func (w *writer) scalar(n *yaml.Node) error {
	switch n.Tag {
	case "!!null":
		return w.value(nil)
	case "!!bool", "!!int", "!!float":
		var value any
		if n.Decode(&value) != nil {
			return errValue
		}
		return w.value(value)
	}
	return w.value(n.Value)
}

func (w *writer) value(v any) error {
	if w.encoder.Encode(v) != nil { // JSON cannot represent infinity
		return errValue
	}
	// remove the newline, because some readers parse the result as YAML, where a newline would end a key
	w.out.Truncate(w.out.Len() - 1)
	return nil
}
