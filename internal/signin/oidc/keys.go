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

// maxKeys is the maximum number of keys that a provider may publish. If a token does not name its key, its signature is
// checked with every key. No deadline interrupts these checks. go-jose limits the size of each key.
const maxKeys = 64

// boundAnswer reads the body of a response into memory. It returns an error if decoding the body would take too much
// memory. The libraries decode JSON into maps, and parse other content as a form.
func boundAnswer(response *http.Response) (*http.Response, error) {
	defer response.Body.Close()
	raw, err := io.ReadAll(http.MaxBytesReader(nil, response.Body, maxBody))
	if err != nil {
		return nil, fmt.Errorf("read the provider's response: %w", err)
	}
	if err := untrusted.Check(raw, bounds()); err != nil {
		return nil, fmt.Errorf("the provider's response: %w", err)
	}
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	err = untrusted.JSON(raw, &set, bounds()) // content in other formats is checked below
	if len(set.Keys) > maxKeys {
		return nil, fmt.Errorf("the provider has %d keys, more than %d", len(set.Keys), maxKeys)
	}
	if err != nil && len(raw) > maxForm && !json.Valid(raw) && !isJWT(raw) {
		return nil, fmt.Errorf("the provider's response is not JSON and has more than %d bytes", maxForm)
	}
	response.Body = io.NopCloser(bytes.NewReader(raw))
	return response, nil
}

// isJWT reports whether a response has the format of a signed userinfo response. A response in this format is small
// even when a library parses it as a form, because the form has only one value.
func isJWT(raw []byte) bool {
	return bytes.Count(raw, []byte(".")) == 2 && !bytes.ContainsAny(raw, "&=")
}
