// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"context"
	"errors"
	"testing"
	"time"

	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// informer counts its handlers.
type informer struct {
	cache.Informer
	handlers int
}

func (i *informer) AddEventHandler(
	toolscache.ResourceEventHandler,
) (toolscache.ResourceEventHandlerRegistration, error) {
	i.handlers++
	return synced{}, nil
}

func (i *informer) RemoveEventHandler(toolscache.ResourceEventHandlerRegistration) error {
	i.handlers--
	return nil
}

type synced struct {
	toolscache.ResourceEventHandlerRegistration
}

func (synced) HasSynced() bool { return true }

// source provides one informer for all kinds, with an API server that does not respond.
type source struct {
	cache.Informers
	client.Reader
	informer
}

func (s *source) GetInformer(context.Context, client.Object, ...cache.InformerGetOption) (cache.Informer, error) {
	return &s.informer, nil
}

func (*source) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return errors.New("the API server is away")
}

func TestStreamThatCannotBeginLeavesNoHandlers(t *testing.T) {
	from := &source{}
	server := New(Options{Informers: from, Live: from, Now: time.Now})
	for range 3 { // clients connect again
		if err := server.feeds["clusters"].start(t.Context(), server); err == nil {
			t.Fatal("a stream began without the API server, want an error")
		}
	}
	if from.handlers != 0 {
		t.Errorf("%d handlers remain from streams that did not begin, want none", from.handlers)
	}
}
