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

// marksPerNode is how many marks a YAML text may have for each node that it may have. A script in a block scalar has
// marks and is one node.
const marksPerNode = 4

// marksPerDirective is how many marks a directive counts for. The parser compares each %TAG with all earlier ones, so
// that 50,000 of them take seconds.
const marksPerDirective = 16

// AsJSON returns the first document of a YAML text as JSON, as sigs.k8s.io/yaml does. It refuses what one person writes
// for another to be read more than once, or as something else: anchors, aliases, merge keys, tags, and keys that are
// there twice. Words of YAML 1.1 for truth, such as yes and off, are texts.
//
// The errors have nothing of the text in them.
func AsJSON(raw []byte, bounds Bounds) ([]byte, error) {
	if len(raw) > bounds.Bytes {
		return nil, fmt.Errorf("%w: it has more than %d bytes", ErrTooLarge, bounds.Bytes)
	}
	if most := bounds.Nodes * marksPerNode; marks(raw) > most {
		return nil, fmt.Errorf("%w: it has more than %d items and commas", ErrTooLarge, most)
	}
	var document yaml.Node
	// a Node: the tree as it is written, in which an alias is one node
	if err := yaml.Unmarshal(raw, &document); err != nil {
		return nil, errors.New("it is not YAML")
	}
	if len(document.Content) != 1 {
		return []byte("null"), nil
	}
	w := writer{nodes: bounds.Nodes}
	w.out.Grow(len(raw) + len(raw)/8)
	w.encoder = json.NewEncoder(&w.out)
	w.encoder.SetEscapeHTML(false) // one byte of text would become six
	if err := w.node(document.Content[0], bounds.Depth); err != nil {
		return nil, err
	}
	return w.out.Bytes(), nil
}

// marks counts the places of a YAML text that begin an item, an entry, a comment or a directive. A node takes no more
// than one for three.
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
		case '#': // each comment is kept apart
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

// endsLine reports whether a line of YAML may end with a byte. Those that are not ASCII end the other line breaks of
// YAML and its mark of the encoding; in UTF-16 the byte beside a line feed is 0.
func endsLine(c byte) bool { return c == '\n' || c == '\r' || c == 0 || c >= 0x80 }

// writer writes nodes as JSON.
type writer struct {
	out     bytes.Buffer
	encoder *json.Encoder
	nodes   int // that there is room for
}

// Refusals.
var (
	errAlias = errors.New("it has an anchor or an alias of YAML, which is not accepted here: write the value out")
	errTag   = errors.New("it has a tag of YAML, such as !!binary, which is not accepted here")
	errKey   = errors.New("a key of it is there twice, or is no text")
	errValue = errors.New("a value of it is no JSON")
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
		return fmt.Errorf("%w: it is nested too deep", ErrTooLarge)
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

// scalar writes what YAML takes a scalar for: a text, a number, a truth value or null. A date is a text, as for
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
	if w.encoder.Encode(v) != nil { // infinity
		return errValue
	}
	w.out.Truncate(w.out.Len() - 1) // the end of the line: for some who read it as YAML again, a key ends there
	return nil
}
