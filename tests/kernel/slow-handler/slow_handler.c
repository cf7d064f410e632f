// SPDX-License-Identifier: Apache-2.0 OR MIT
// Driver for QEMU's device `edu`, with an interrupt handler that only takes time. The handler delays all
// devices on the same line.

#include <linux/delay.h>
#include <linux/interrupt.h>
#include <linux/module.h>
#include <linux/pci.h>

static unsigned int handler_us = 1000;
module_param(handler_us, uint, 0444);
MODULE_PARM_DESC(handler_us, "time of the handler in microseconds");

static irqreturn_t handle(int line, void *device)
{
	mdelay(handler_us / 1000);
	udelay(handler_us % 1000);
	return IRQ_NONE;
}

static int probe(struct pci_dev *device, const struct pci_device_id *id)
{
	int error = pcim_enable_device(device);

	if (error)
		return error;
	return devm_request_irq(&device->dev, device->irq, handle, IRQF_SHARED, "slow_handler", device);
}

static const struct pci_device_id devices[] = { { PCI_DEVICE(0x1234, 0x11e8) }, {} };
MODULE_DEVICE_TABLE(pci, devices);

static struct pci_driver slow_handler = { .name = "slow_handler", .id_table = devices, .probe = probe };
module_pci_driver(slow_handler);

MODULE_LICENSE("Dual MIT/GPL");
MODULE_DESCRIPTION("An interrupt handler that takes time");
