// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// onPlansError is called with each error from reading Plans. If the API server does not know the kind, there are two
// possible reasons. Either a user has removed the kind, and the Plans in the store may be gone, or the API server
// has just started and will serve the kind soon. Because of the second possibility, the nodes of these Plans are not
// released yet.
func (l *leadership) onPlansError(err error) {
	if apierrors.IsNotFound(err) {
		l.kindMissing.Store(true)
		l.touch()
	}
}

// needsInstall reports whether the kind or the namespace for plans has been removed. It returns false while the
// namespace is being deleted, because nothing can be created in it.
func (l *leadership) needsInstall() bool {
	spaces := l.space.Values()
	if l.leaving || len(spaces) > 0 && spaces[0].leaving {
		return false
	}
	return len(spaces) == 0 || l.kindMissing.Swap(false)
}

// keepAccount creates the account for the pods of plans if it does not exist. Without the account, no pods are
// created, and a Job waits until its deadline. A new leader applies the account once, because an existing account
// may come from an older agent.
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
