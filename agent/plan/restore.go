// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// missKind is told of errors of listing Plans. When the API server does not know the kind, somebody has removed it, and the Plans on the
// shelf may be no more. Or it has just begun and will know it soon, which is no reason to let their nodes go.
func (t *term) missKind(err error) {
	if apierrors.IsNotFound(err) {
		t.plans.doubt()
		t.kindless.Store(true)
		t.touch()
	}
}

// lacks says whether somebody has removed the namespace of plans or their kind; of the kind once for each time that it was found missing.
// While the namespace is on its way nothing can be put there.
func (t *term) lacks() bool {
	spaces := t.space.values()
	if t.leaving || len(spaces) > 0 && spaces[0].leaving {
		return false
	}
	return len(spaces) == 0 || t.kindless.Swap(false)
}

// keepAccount puts the account of plans' pods back if somebody has removed it: without it no pod is made, and a Job waits for its deadline.
func (t *term) keepAccount(ctx context.Context) error {
	_, err := t.options.Objects.Meta(ctx, pathAccount)
	if apierrors.IsNotFound(err) {
		return t.furnish(ctx)
	}
	return err
}
