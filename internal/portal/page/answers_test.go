// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package page

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover/test/testkit"
)

// answer responds to requests with a method and path, for example "GET /v1/auth/tokens". handle gets the body.
type answer func(body map[string]any) (code int, value any)

// sent is a request that the page has sent, with its JSON body.
type sent struct {
	path, query, kind string
	body              map[string]any
}

// on sets the answer to a request.
func (f *fleet) on(request string, a answer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.answers == nil {
		f.answers = map[string]answer{}
	}
	f.answers[request] = a
}

// always returns an answer with a value.
func always(value any) answer { return func(map[string]any) (int, any) { return http.StatusOK, value } }

// serve answers requests that no other handler knows, and keeps requests that change something.
func (f *fleet) serve(w http.ResponseWriter, r *http.Request) {
	request := r.Method + " " + r.URL.Path
	body := map[string]any{}
	raw, _ := io.ReadAll(r.Body)
	_ = json.Unmarshal(raw, &body)
	f.mu.Lock()
	a := f.answers[request]
	if r.Method != http.MethodGet {
		if f.sent == nil {
			f.sent = map[string]sent{}
		}
		f.sent[request] = sent{r.URL.Path, r.URL.RawQuery, r.Header.Get("Content-Type"), body}
	}
	f.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	if a == nil {
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write([]byte(`{"message":"not found"}`))
		return
	}
	code, value := a(body)
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(value)
}

// awaitSent waits until the page has sent a request whose method and path begin so, and returns it.
func (f *fleet) awaitSent(t *testing.T, beginning string) sent {
	t.Helper()
	var found sent
	testkit.Eventually(t, 20*time.Second, func(context.Context) error {
		f.mu.Lock()
		defer f.mu.Unlock()
		var all []string
		for request, s := range f.sent {
			if strings.HasPrefix(request, beginning) {
				found = s
				return nil
			}
			all = append(all, request)
		}
		return fmt.Errorf("the page has sent %q, want a request that begins with %q", all, beginning)
	})
	return found
}
