// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// onListError is called with errors of listing Plans. If the API server does not know the kind, a user has removed it, and the Plans in the
// store may be gone. Or the API server has just started and will know it soon: their nodes are not released yet.
func (l *leadership) onListError(err error) {
	if apierrors.IsNotFound(err) {
		l.plans.invalidate()
		l.kindMissing.Store(true)
		l.touch()
	}
}

// needsInstall reports whether the namespace of plans or their kind was removed. A missing kind is reported once for each failed list.
// While the namespace is being deleted nothing can be created in it.
func (l *leadership) needsInstall() bool {
	spaces := l.space.values()
	if l.leaving || len(spaces) > 0 && spaces[0].leaving {
		return false
	}
	return len(spaces) == 0 || l.kindMissing.Swap(false)
}

// keepAccount creates the account of plans' pods again if it was removed: without it no pod is created, and a Job waits until its deadline.
func (l *leadership) keepAccount(ctx context.Context) error {
	_, err := l.options.Objects.Meta(ctx, pathAccount)
	if apierrors.IsNotFound(err) {
		return l.applyPrerequisites(ctx)
	}
	return err
}
