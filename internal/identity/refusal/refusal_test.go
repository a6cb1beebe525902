// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package refusal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestWrite(t *testing.T) {
	cause := errors.New("password is hunter2")
	at := time.Date(2027, 1, 2, 3, 4, 5, 0, time.FixedZone("", 3600))
	cluster := types.NamespacedName{Namespace: "a", Name: "b"}
	for name, test := range map[string]struct {
		err    error
		code   int
		reason metav1.StatusReason
		header map[string]string
	}{
		"401 has a challenge": {
			Unauthorized("no"), 401, metav1.StatusReasonUnauthorized, map[string]string{"WWW-Authenticate": "Bearer"},
		},
		"403 has none": {
			Forbidden("no").Because(cause), 403, metav1.StatusReasonForbidden, map[string]string{"WWW-Authenticate": ""},
		},
		"503 says when to try again": {
			Unavailable("no").About(cluster), 503, metav1.StatusReasonServiceUnavailable, map[string]string{"Retry-After": "1"}},
		"a time for the next attempt is in GMT": {
			Unavailable("no").RetryAt(at), 503, metav1.StatusReasonServiceUnavailable,
			map[string]string{"Retry-After": "Sat, 02 Jan 2027 02:04:05 GMT"}},
		"a wrapped refusal is found": {fmt.Errorf("proxy: %w", BadRequest("no")), 400, metav1.StatusReasonBadRequest, nil},
		"an unknown error is 500":    {cause, 500, metav1.StatusReasonInternalError, nil},
		"a deadline is 504":          {fmt.Errorf("x: %w", context.DeadlineExceeded), 504, ReasonGatewayTimeout, nil},
		"a refusal must not be cached": {
			Forbidden("no"), 403, metav1.StatusReasonForbidden, map[string]string{"Cache-Control": "no-store"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := httptest.NewRecorder()
			Write(w, test.err)
			var got metav1.Status
			if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
				t.Fatal(err)
			}
			if w.Code != test.code || got.Code != int32(test.code) || got.Reason != test.reason ||
				got.Kind != "Status" || got.Status != "Failure" {
				t.Errorf("got %d %s, want a Status with %d %s", w.Code, w.Body, test.code, test.reason)
			}
			for key, want := range test.header {
				if w.Header().Get(key) != want {
					t.Errorf("%s is %q, want %q", key, w.Header().Get(key), want)
				}
			}
			if strings.Contains(w.Body.String(), "hunter2") {
				t.Errorf("the body is %s, want it without the cause", w.Body)
			}
		})
	}
}

func TestError(t *testing.T) {
	cause := errors.New("cause")
	first := Forbidden("no")
	second := first.Because(cause).About(types.NamespacedName{Namespace: "a", Name: "b"})
	if !errors.Is(second, cause) || second.Error() != "no: cause" || !apierrors.IsForbidden(second) {
		t.Errorf("the copy is %v, want it to be Forbidden with the cause", second)
	}
	want := &metav1.StatusDetails{Group: "cluster.drover.dev", Kind: "clusters", Name: "b"}
	if got := second.Status().Details; !reflect.DeepEqual(got, want) {
		t.Errorf("got the details %+v, want %+v", got, want)
	}
	if errors.Unwrap(first) != nil || first.Status().Details != nil {
		t.Errorf("the original has become %+v, want it unchanged", first)
	}
}
