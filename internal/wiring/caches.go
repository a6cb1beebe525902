// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package wiring

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// CachesFilled returns an error for the first kind whose cache is not filled yet. It does not wait.
func CachesFilled(caches cache.Cache, kinds ...client.Object) error {
	now, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	for _, object := range kinds {
		informer, err := caches.GetInformer(now, object)
		if err != nil || !informer.HasSynced() {
			return notFilled(object, err)
		}
	}
	return nil
}

// notFilled returns an error that explains why the cache of a kind is not filled.
func notFilled(object client.Object, err error) error {
	if meta.IsNoMatchError(err) {
		return fmt.Errorf("cache of %T cannot be filled: the hub's API server does not have the kind; "+
			"apply the CRDs of this version", object)
	}
	return fmt.Errorf("cache of %T is not filled yet", object)
}
