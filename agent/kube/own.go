// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
)

// NoVersion is a resource version that no object has. When an object is applied with this version, the API server
// creates the object if it does not exist, and reports a conflict otherwise.
const NoVersion = "1"

// ForeignError is returned if an existing object does not belong to the caller.
type ForeignError struct{ Message string }

func (f *ForeignError) Error() string { return f.Message }

// Own creates an object. If an object with this name exists, Own updates that object if it belongs to the caller. The
// create function must fail with a conflict if the object exists. The inspect function returns the UID of an existing
// object that belongs to the caller, "" if the object does not exist, or a ForeignError.
func Own[T any](
	create func() (T, error), inspect func() (types.UID, error), update func(types.UID) (T, error),
) (T, error) {
	stored, err := create()
	if !apierrors.IsConflict(err) && !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
		return stored, err
	}
	uid, failed := inspect()
	switch foreign := (*ForeignError)(nil); {
	case errors.As(failed, &foreign), failed != nil && apierrors.IsConflict(err):
		return stored, failed
	case !apierrors.IsConflict(err):
		return stored, err
	case uid == "": // the object was deleted in the meantime
		return create()
	}
	return update(uid)
}

// share is the maximum number of objects of a set that are written in parallel.
const share = 8

// Each calls f for each object, with at most share calls in parallel, and returns when all calls have returned. It
// starts no further calls once ctx is done.
func Each[T any](ctx context.Context, all []T, f func(T)) {
	var running sync.WaitGroup
	places := make(chan struct{}, share)
	for _, one := range all {
		if ctx.Err() != nil {
			break
		}
		places <- struct{}{}
		running.Go(func() {
			defer func() { <-places }()
			f(one)
		})
	}
	running.Wait()
}
