// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package oauth

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func FuzzFormIsFlatAndBounded(f *testing.F) {
	f.Add("grant_type=authorization_code&client_id=kubectl&code=a", "application/x-www-form-urlencoded",
		"Basic a3ViZWN0bDo=")
	f.Add("a=1&a=2", "application/x-www-form-urlencoded; charset=utf-8", "")
	f.Fuzz(func(t *testing.T, body, kind, authorization string) {
		r := httptest.NewRequest(http.MethodPost, "/v1/auth/token", strings.NewReader(body))
		r.Header.Set("Content-Type", kind)
		r.Header.Set("Authorization", authorization)
		fields, err := Form(httptest.NewRecorder(), r)
		if err != nil {
			return
		}
		for name, values := range fields {
			if len(values) != 1 || len(name)+len(values[0]) > MaxForm {
				t.Errorf("the field %q is taken %d times", name, len(values))
			}
		}
		if checkClient(r, fields) == nil && fields.Get("client_id") != ClientID && authorization == "" {
			t.Errorf("%q is taken for the client", body)
		}
	})
}
