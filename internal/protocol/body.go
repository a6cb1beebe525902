// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"errors"
	"fmt"
	"io"
	"net/http"
)

// ReadPut returns the body of a PUT request. If the request has another method, or if its body is incomplete or
// larger than limit, ReadPut responds with an error and returns false. The error message refers to the body by the
// given name.
func ReadPut(w http.ResponseWriter, r *http.Request, name string, limit int64) ([]byte, bool) {
	if r.Method != http.MethodPut {
		w.Header().Set("Allow", http.MethodPut)
		http.Error(w, name+": the method must be PUT", http.StatusMethodNotAllowed)
		return nil, false
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		http.Error(w, fmt.Sprintf("%s: more than %d bytes", name, limit), http.StatusRequestEntityTooLarge)
		return nil, false
	}
	if err != nil {
		http.Error(w, name+": the body was cut off", http.StatusBadRequest)
		return nil, false
	}
	return body, true
}
