// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package oidc

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/drover-dev/drover/internal/untrusted"
)

// maxKeys bounds a provider's keys. A signature of a token that names no key is checked with each, and no deadline ends
// that. go-jose bounds their size.
const maxKeys = 64

// boundAnswer returns a response whose body is read, or an error if libraries could make much of it: they decode JSON
// into maps, and what is no JSON as a form.
func boundAnswer(response *http.Response) (*http.Response, error) {
	defer response.Body.Close()
	raw, err := io.ReadAll(http.MaxBytesReader(nil, response.Body, maxBody))
	if err != nil {
		return nil, fmt.Errorf("read the provider's answer: %w", err)
	}
	if err := untrusted.Check(raw, bounds()); err != nil {
		return nil, fmt.Errorf("the provider's answer: %w", err)
	}
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	err = untrusted.JSON(raw, &set, bounds()) // what is no set of keys is not for this to refuse
	if len(set.Keys) > maxKeys {
		return nil, fmt.Errorf("the provider has %d keys, more than %d", len(set.Keys), maxKeys)
	}
	if err != nil && len(raw) > maxForm && !json.Valid(raw) && !isJWT(raw) {
		return nil, fmt.Errorf("the provider's answer is no JSON and has more than %d bytes", maxForm)
	}
	response.Body = io.NopCloser(bytes.NewReader(raw))
	return response, nil
}

// isJWT reports whether an answer is of the form of a signed userinfo, in which a form has no second value.
func isJWT(raw []byte) bool {
	return bytes.Count(raw, []byte(".")) == 2 && !bytes.ContainsAny(raw, "&=")
}
