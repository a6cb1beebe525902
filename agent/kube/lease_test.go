// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/drover-dev/drover/agent/kube"
)

// leaseAt returns a Lease on an API server that responds to every request with the same code and object.
func leaseAt(t *testing.T, code int, answer any) *kube.Lease {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	client, err := kube.New(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	return client.Lease("drover-agent", "drover-agent")
}

func TestLease(t *testing.T) {
	t.Parallel()
	t.Run("what the API server says of a refusal is in the error", func(t *testing.T) {
		t.Parallel()
		status := metav1.Status{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
			Reason: metav1.StatusReasonForbidden, Code: http.StatusForbidden, Message: "the agent cannot get leases",
		}
		_, err := leaseAt(t, http.StatusForbidden, status).Get(t.Context())
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), status.Message) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a code without a message is recognized by the code", func(t *testing.T) {
		t.Parallel()
		if _, err := leaseAt(t, http.StatusNotFound, nil).Get(t.Context()); !apierrors.IsNotFound(err) {
			t.Errorf("got %v", err)
		}
		if _, err := leaseAt(t, http.StatusConflict, nil).Update(t.Context(),
			&coordinationv1.Lease{}); !apierrors.IsConflict(err) {
			t.Errorf("got %v", err)
		}
		if _, err := leaseAt(t, http.StatusConflict, nil).Create(t.Context(),
			coordinationv1.LeaseSpec{}); !apierrors.IsAlreadyExists(err) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a Lease is read as it is", func(t *testing.T) {
		t.Parallel()
		holder := "one"
		stored := coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "7"},
			Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder}}
		lease, err := leaseAt(t, http.StatusOK, stored).Get(t.Context())
		if err != nil || lease.ResourceVersion != "7" || *lease.Spec.HolderIdentity != holder {
			t.Errorf("got %+v, %v", lease, err)
		}
	})
}
