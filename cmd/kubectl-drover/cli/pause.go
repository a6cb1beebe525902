// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Pausing completes a command that sets spec.paused in an object. The first argument is the name of the object. The
// function read returns the object and the address of its field.
func Pausing(
	o *Options, c *cobra.Command, paused bool, read func(context.Context, *Hub, string) (client.Object, *bool, error),
) *cobra.Command {
	change := BindChange(c)
	c.Args = Arguments(1, "NAME")
	c.RunE = func(c *cobra.Command, args []string) error {
		return o.OnHub(c, CommandLimit, func(ctx context.Context, h *Hub) error {
			object, field, err := read(ctx, h, args[0])
			if err != nil {
				return err
			}
			done := "resumed"
			if paused {
				done = "paused"
			}
			if *field == paused {
				done = "unchanged"
			}
			// was is a copy of the object before the change, so that the patch contains only the changed field.
			was, _ := object.DeepCopyObject().(client.Object)
			*field = paused
			return change.Make(h, object, done, func(w client.Client) error {
				return w.Patch(ctx, object, client.MergeFrom(was))
			})
		})
	}
	return c
}
