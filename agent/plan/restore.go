// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// onPlansError is called with errors of reading Plans. If the API server does not know the kind, a user has removed it,
// and the Plans in the store may be gone. Or the API server has just started and will know it soon: their nodes are not
// released yet.
func (l *leadership) onPlansError(err error) {
	if apierrors.IsNotFound(err) {
		l.kindMissing.Store(true)
		l.touch()
	}
}

// needsInstall reports whether the namespace of plans or their kind was removed.
// While the namespace is being deleted nothing can be created in it.
func (l *leadership) needsInstall() bool {
	spaces := l.space.Values()
	if l.leaving || len(spaces) > 0 && spaces[0].leaving {
		return false
	}
	return len(spaces) == 0 || l.kindMissing.Swap(false)
}

// keepAccount creates the account of plans' pods if it is not there: without it no pod is created, and a Job waits
// until its deadline. A new leader applies it once, since it may be that of an older agent.
func (l *leadership) keepAccount(ctx context.Context) error {
	if l.account {
		_, err := l.options.Objects.Meta(ctx, pathAccount)
		if !apierrors.IsNotFound(err) {
			return err
		}
	}
	for _, o := range account() {
		if _, err := l.apply(ctx, o); err != nil {
			return err
		}
	}
	l.account = true
	return nil
}
