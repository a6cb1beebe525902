// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package untrusted decodes JSON and YAML from untrusted sources, and limits the memory that decoding can use.
//
// A megabyte of JSON can decode to fifty megabytes of maps, and a kilobyte of YAML with aliases to gigabytes. This
// package therefore counts all elements before it allocates large amounts of memory.
package untrusted

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Bounds are the limits for one text to decode.
type Bounds struct {
	// Bytes is the maximum length of the text.
	Bytes int
	// Nodes is the maximum number of values and keys in the text, including nested ones.
	Nodes int
	// Depth is the maximum nesting depth of objects and lists.
	Depth int
	// Items is the maximum number of items in a list of Kubernetes objects, or 0 if only Nodes limits them. A short
	// text such as {} can become a large Go struct. All elements of the lists and objects that are directly inside the
	// top-level value are counted.
	Items int
}

// Small returns limits for a credential, a claim, a note, or a response with few fields.
func Small() Bounds { return Bounds{Bytes: 64 << 10, Nodes: 4096, Depth: 16} }

// Large returns limits for a Kubernetes object, or for a message between the hub and an agent.
func Large() Bounds { return Bounds{Bytes: 1 << 20, Nodes: 32 << 10, Depth: 64} }

// WithBytes returns a copy of the limits with another maximum length.
func (b Bounds) WithBytes(n int) Bounds {
	b.Bytes = n
	return b
}

// ErrTooLarge is wrapped by the errors for text that exceeds a limit.
var ErrTooLarge = errors.New("the text exceeds a limit")

// JSON decodes one JSON value in the same way as encoding/json.
func JSON(raw []byte, into any, bounds Bounds) error {
	if err := Check(raw, bounds); err != nil {
		return err
	}
	return json.Unmarshal(raw, into)
}

// Claims decodes the payload of a JWT. It does not verify the signature.
func Claims(token string, into any, bounds Bounds) error {
	parts := strings.SplitN(token, ".", 4)
	if len(parts) != 3 {
		return errors.New("the token is not a JWT")
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return fmt.Errorf("decode the payload of a JWT: %w", err)
	}
	return JSON(payload, into, bounds)
}

// StrictJSON decodes one JSON value and rejects unknown fields.
func StrictJSON(raw []byte, into any, bounds Bounds) error {
	if err := Check(raw, bounds); err != nil {
		return err
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is more data after the JSON value")
	}
	return nil
}

// ReadJSON reads the input to its end, and decodes one JSON value. It reads at most one byte beyond the limit.
func ReadJSON(from io.Reader, into any, bounds Bounds) error {
	raw, err := io.ReadAll(io.LimitReader(from, int64(bounds.Bytes)+1))
	if err != nil {
		return err
	}
	return JSON(raw, into, bounds)
}

// Check returns an error if a JSON text exceeds its limits. It allocates no memory. It does not check whether the text
// is valid, because encoding/json does so before it decodes the text.
func Check(raw []byte, bounds Bounds) error {
	if len(raw) > bounds.Bytes {
		return fmt.Errorf("%w: it has more than %d bytes", ErrTooLarge, bounds.Bytes)
	}
	nodes, depth, items := 1, 0, 1
	for i := 0; i < len(raw); i++ {
		switch raw[i] {
		case '"':
			i = endOfString(raw, i)
		case '{', '[':
			nodes++
			depth++
		case '}', ']':
			depth--
		case ',':
			nodes++
			if depth == 2 { // in {"items": [
				items++
			}
		case ':':
			nodes++
		}
		if nodes > bounds.Nodes {
			return fmt.Errorf("%w: it has more than %d values", ErrTooLarge, bounds.Nodes)
		}
		if bounds.Items > 0 && items > bounds.Items {
			return fmt.Errorf("%w: it has more than %d items", ErrTooLarge, bounds.Items)
		}
		if depth > bounds.Depth {
			return fmt.Errorf("%w: it is nested more than %d deep", ErrTooLarge, bounds.Depth)
		}
	}
	return nil
}

// endOfString returns the index at which a string ends. The at parameter is the index of its opening quote.
func endOfString(raw []byte, at int) int {
	for at++; at < len(raw) && raw[at] != '"'; at++ {
		if raw[at] == '\\' {
			at++
		}
	}
	return at
}
