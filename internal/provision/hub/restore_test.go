// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package hub_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	leasesv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/checkpoint"
	"github.com/drover-dev/drover/internal/provision/hub"
)

// leases serves the manager's Lease with these histories, one after the other, and the last one from then on. An empty
// history is an error.
type leases struct {
	leasesv1.LeaseInterface
	histories []string
}

func (l *leases) Leases(string) leasesv1.LeaseInterface { return l }

func (l *leases) Get(context.Context, string, metav1.GetOptions) (*coordinationv1.Lease, error) {
	next := l.histories[0]
	if len(l.histories) > 1 {
		l.histories = l.histories[1:]
	}
	if next == "" {
		return nil, errors.New("no connection")
	}
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		UID: "uid", Annotations: map[string]string{v1.AnnotationTerms: next},
	}}, nil
}

func TestProvisionerEndsOnceTheHubWasRestored(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		histories []string
		want      error
	}{
		"the leader renews":                     {[]string{"1/a/7", "1/a/8", "1/a/9"}, nil},
		"another manager leads":                 {[]string{"1/a/7", "1/a/7 2/b/1"}, nil},
		"renewals are missing":                  {[]string{"1/a/7", "1/a/5"}, checkpoint.ErrRestored},
		"renewals are missing, and one leads":   {[]string{"1/a/7", "1/a/5 2/b/1"}, checkpoint.ErrRestored},
		"a term is missing":                     {[]string{"1/a/7 2/b/1", "1/a/5"}, checkpoint.ErrRestored},
		"the hub did not answer at the restore": {[]string{"1/a/7", "", "", "1/a/5"}, checkpoint.ErrRestored},
		"the hub does not answer":               {[]string{"1/a/7", ""}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithTimeout(t.Context(), time.Minute)
				defer stop()
				err := hub.NewRestoreWatch(&leases{histories: tc.histories}, namespace).Start(ctx)
				if !errors.Is(err, tc.want) {
					t.Errorf("it ends with %v, want %v", err, tc.want)
				}
			})
		})
	}
}
