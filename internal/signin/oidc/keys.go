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

// maxKeys is the maximum number of a provider's keys. If a token does not name a key, its signature is checked with
// each key, and no deadline interrupts these checks. go-jose limits the size of keys.
const maxKeys = 64

// boundAnswer returns a response whose body has been read. It returns an error if decoding it could allocate a lot of
// memory, because libraries decode JSON into maps, and other content as a form.
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
	err = untrusted.JSON(raw, &set, bounds()) // other content is not refused here
	if len(set.Keys) > maxKeys {
		return nil, fmt.Errorf("the provider has %d keys, more than %d", len(set.Keys), maxKeys)
	}
	if err != nil && len(raw) > maxForm && !json.Valid(raw) && !isJWT(raw) {
		return nil, fmt.Errorf("the provider's response is not JSON and has more than %d bytes", maxForm)
	}
	response.Body = io.NopCloser(bytes.NewReader(raw))
	return response, nil
}

// isJWT reports whether a response has the format of a signed userinfo response. If such a response were parsed as a
// form, it would have only one value.
func isJWT(raw []byte) bool {
	return bytes.Count(raw, []byte(".")) == 2 && !bytes.ContainsAny(raw, "&=")
}
