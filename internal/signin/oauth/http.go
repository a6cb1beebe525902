// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package oauth

import (
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
)

// MaxForm is the maximum size of a form, in bytes. The longest forms contain a code. A code includes a user's groups
// and the state from the user's provider.
const MaxForm = 32 << 10

// Form parses a form. It refuses a form that is too long or repeats a field.
func Form(w http.ResponseWriter, r *http.Request) (url.Values, error) {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || kind != "application/x-www-form-urlencoded" {
		return nil, Invalid("the request is not a form")
	}
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxForm))
	if err != nil {
		return nil, Invalid("the form could not be read, or is longer than %d bytes", MaxForm)
	}
	values, err := url.ParseQuery(string(raw))
	if err != nil {
		return nil, Invalid("the form is malformed")
	}
	for name, all := range values {
		if len(all) > 1 {
			return nil, Invalid("the field %.40q is given more than once", name)
		}
	}
	return values, nil
}

// ClientForm parses a form and checks its client ID.
func ClientForm(w http.ResponseWriter, r *http.Request) (url.Values, error) {
	fields, err := Form(w, r)
	if err != nil {
		return nil, err
	}
	return fields, checkClient(r, fields)
}

// checkClient returns an Error unless the request contains the client ID and no secret. OAuth 2.0 clients send the ID
// in a form field or in a Basic authentication header. Many try the header first.
func checkClient(r *http.Request, fields url.Values) error {
	problem := &Error{"invalid_client", fmt.Sprintf("client_id must be %q, without a secret", ClientID)}
	id := fields.Get("client_id")
	if r.Header.Get("Authorization") != "" {
		user, secret, ok := r.BasicAuth()
		if !ok || secret != "" || id != "" && id != user {
			return problem
		}
		id = user
	}
	if id != ClientID || fields.Get("client_secret") != "" {
		return problem
	}
	return nil
}

// Values of the Cache-Control header.
const (
	NoStore = "no-store"
	Public  = "public, max-age=600"
)

// WriteJSON writes a JSON response.
func WriteJSON(w http.ResponseWriter, code int, caching string, content any) {
	body, err := json.Marshal(content)
	if err != nil { // all types that the issuer writes can be marshaled
		code, body = http.StatusInternalServerError, []byte("{}")
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", caching)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = w.Write(body)
}
