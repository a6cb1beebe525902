// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package hub_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	leasesv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/checkpoint"
	"github.com/drover-dev/drover/internal/provision/hub"
)

// none in place of a history stands for a Lease that does not exist.
const none = "none"

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
	switch next {
	case "":
		return nil, errors.New("no connection")
	case none:
		return nil, apierrors.NewNotFound(coordinationv1.Resource("leases"), hub.ManagerLease)
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
		logged    int // complaints about the Lease
	}{
		"the leader renews":                     {[]string{"1/a/7", "1/a/8", "1/a/9"}, nil, 0},
		"another manager leads":                 {[]string{"1/a/7", "1/a/7 2/b/1"}, nil, 0},
		"renewals are missing":                  {[]string{"1/a/7", "1/a/5"}, checkpoint.ErrRestored, 0},
		"renewals are missing, and one leads":   {[]string{"1/a/7", "1/a/5 2/b/1"}, checkpoint.ErrRestored, 0},
		"a term is missing":                     {[]string{"1/a/7 2/b/1", "1/a/5"}, checkpoint.ErrRestored, 0},
		"the hub did not answer at the restore": {[]string{"1/a/7", "", "", "1/a/5"}, checkpoint.ErrRestored, 1},
		"the hub does not answer":               {[]string{"1/a/7", ""}, nil, 1},
		"it fails to answer twice":              {[]string{"1/a/7", "", "1/a/8", "", ""}, nil, 2},
		"there is no Lease":                     {[]string{none}, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithTimeout(t.Context(), time.Minute)
				defer stop()
				var logged []string
				log := funcr.New(func(_, line string) { logged = append(logged, line) }, funcr.Options{})
				err := hub.NewRestoreWatch(&leases{histories: tc.histories}, namespace, log).Start(ctx)
				if !errors.Is(err, tc.want) {
					t.Errorf("it ends with %v, want %v", err, tc.want)
				}
				if len(logged) != tc.logged {
					t.Errorf("it logged %q, want %d lines", logged, tc.logged)
				}
			})
		})
	}
}
