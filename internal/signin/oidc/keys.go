// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package oidc

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
)

// maxKeys bounds a provider's keys. A signature of a token that names no key is checked with each, and no deadline ends that. go-jose bounds their size.
const maxKeys = 64

// boundKeys returns a response, or an error if it is a set of too many keys.
func boundKeys(response *http.Response) (*http.Response, error) {
	defer response.Body.Close()
	raw, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, fmt.Errorf("read the provider's answer: %w", err)
	}
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	_ = json.Unmarshal(raw, &set) // what is no set of keys is not for this to refuse
	if len(set.Keys) > maxKeys {
		return nil, fmt.Errorf("the provider has %d keys, more than %d", len(set.Keys), maxKeys)
	}
	response.Body = io.NopCloser(bytes.NewReader(raw))
	return response, nil
}
