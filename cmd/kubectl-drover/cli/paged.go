// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/pager"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// pageSize is the number of objects that the plugin requests at once.
	pageSize = 500
	// maxListed is the maximum number of objects in a list, counting all of its pages.
	maxListed = 200_000
)

// paged lists objects in pages. The limits on a response (see bounded) therefore apply to one page rather than to the
// whole list.
type paged struct{ client.WithWatch }

// List implements client.Reader.
func (p paged) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	asked := (&client.ListOptions{}).ApplyOptions(options)
	if asked.Limit > 0 || asked.Continue != "" {
		return p.WithWatch.List(ctx, list, options...)
	}
	read := 0
	pages := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		page, ok := list.DeepCopyObject().(client.ObjectList)
		if !ok {
			return nil, fmt.Errorf("%T is not a list", list)
		}
		if o.Continue == "" { // the first page, or the previous list has expired
			read = 0
		}
		one := *asked
		one.Limit, one.Continue = o.Limit, o.Continue
		if err := p.WithWatch.List(ctx, page, &one); err != nil {
			return nil, err
		}
		if read += meta.LenList(page); read > maxListed {
			return nil, fmt.Errorf("the server has more than %d of these objects: select fewer, for example one workspace",
				maxListed)
		}
		return page, nil
	})
	pages.PageSize = pageSize
	all, _, err := pages.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	items, err := meta.ExtractList(all)
	if err != nil {
		return err
	}
	if whole, err := meta.ListAccessor(all); err == nil {
		list.SetResourceVersion(whole.GetResourceVersion())
	}
	return meta.SetList(list, items)
}
