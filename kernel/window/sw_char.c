// SPDX-License-Identifier: GPL-2.0
/* /dev/sluice_windowN. */
#include <linux/cred.h>
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/poll.h>
#include <linux/uaccess.h>

#include "sw.h"

static void signal_one(struct sw_event_fd *event)
{
#ifdef SW_HAS_EVENTFD_COUNT
	eventfd_signal(event->ctx, 1);
#else
	eventfd_signal(event->ctx);
#endif
}

void sw_signal(struct sw_window *window, u32 vector)
{
	struct sw_event_fd *event;
	unsigned long flags;

	spin_lock_irqsave(&window->events_lock, flags);
	list_for_each_entry(event, &window->events, list)
		if (event->vector == vector)
			signal_one(event);
	spin_unlock_irqrestore(&window->events_lock, flags);
}

/* There is something to hear for this file, or it is over: all that it waits by says so. */
static void wake(struct sw_file *file)
{
	struct sw_event_fd *event;
	unsigned long flags;

	wake_up_interruptible_poll(&file->wait, EPOLLIN | EPOLLHUP);
	spin_lock_irqsave(&file->window->events_lock, flags);
	list_for_each_entry(event, &file->window->events, list)
		if (event->file == file && (event->vector == 0 || file->ended))
			signal_one(event);
	spin_unlock_irqrestore(&file->window->events_lock, flags);
}

void sw_files_wake(struct sw_window *window)
{
	struct sw_file *file;

	list_for_each_entry(file, &window->files, list)
		wake(file);
}

void sw_files_peer_ended(struct sw_window *window, u32 peer)
{
	struct sw_file *file;

	list_for_each_entry(file, &window->files, list)
		if (file->attached && !file->ended && file->peer == peer) {
			file->ended = true;
			wake(file);
		}
}

/* A message for a port at which nobody is goes nowhere. */
void sw_files_message(struct sw_window *window, u32 peer, u32 kind, const u8 *data, u32 bytes)
{
	struct sw_queued *queued;
	struct sw_file *file;

	list_for_each_entry(file, &window->files, list) {
		if (!file->attached || file->ended || file->peer != peer ||
		    file->port != kind >> 16)
			continue;
		queued = file->queued < SLUICE_WINDOW_QUEUE_MAX && !file->lost ?
				 kmalloc(struct_size(queued, data, bytes), GFP_KERNEL) : NULL;
		if (queued) {
			queued->kind = kind;
			queued->bytes = bytes;
			memcpy(queued->data, data, bytes);
			list_add_tail(&queued->list, &file->queue);
			file->queued++;
		} else {
			file->lost = true;
		}
		wake(file);
		return;
	}
}

static int sw_open(struct inode *inode, struct file *opened)
{
	struct sw_window *window = container_of(opened->private_data, struct sw_window, misc);
	struct sw_file *file = kzalloc(sizeof(*file), GFP_KERNEL_ACCOUNT);

	if (!file)
		return -ENOMEM;
	file->page = get_zeroed_page(GFP_KERNEL_ACCOUNT);
	if (!file->page) {
		kfree(file);
		return -ENOMEM;
	}
	file->window = window;
	file->file = opened;
	file->uid = current_euid();
	INIT_LIST_HEAD(&file->pieces);
	INIT_LIST_HEAD(&file->queue);
	init_waitqueue_head(&file->wait);
	/* misc_open holds off misc_deregister, and with it the last reference. */
	kref_get(&window->ref);
	mutex_lock(&window->lock);
	list_add_tail(&file->list, &window->files);
	mutex_unlock(&window->lock);
	opened->private_data = file;
	return 0;
}

static void forget_events(struct sw_file *file)
{
	struct sw_window *window = file->window;
	struct sw_event_fd *event, *next;
	LIST_HEAD(mine);

	spin_lock_irq(&window->events_lock);
	list_for_each_entry_safe(event, next, &window->events, list)
		if (event->file == file)
			list_move(&event->list, &mine);
	spin_unlock_irq(&window->events_lock);
	list_for_each_entry_safe(event, next, &mine, list) {
		eventfd_ctx_put(event->ctx);
		kfree(event);
	}
}

static int sw_release(struct inode *inode, struct file *opened)
{
	struct sw_file *file = opened->private_data;
	struct sw_window *window = file->window;
	struct sw_piece *piece, *next;
	struct sw_queued *queued, *other;

	mutex_lock(&window->lock);
	list_for_each_entry_safe(piece, next, &file->pieces, list)
		sw_piece_end(file, piece);
	list_del(&file->list);
	mutex_unlock(&window->lock);
	forget_events(file);
	list_for_each_entry_safe(queued, other, &file->queue, list)
		kfree(queued);
	free_page(file->page);
	kfree(file);
	kref_put(&window->ref, sw_window_free);
	return 0;
}

/* Whether this file can do anything, with the lock held. */
static int usable(struct sw_file *file)
{
	if (file->window->state == SW_REMOVED)
		return -ENODEV;
	if (!file->attached)
		return -ENOTCONN;
	return file->ended ? -ENOLINK : 0;
}

static long do_info(struct sw_file *file, void __user *arg)
{
	struct sw_window *window = file->window;
	struct sluice_window_info info = { .abi = SLUICE_WINDOW_ABI };
	int err = 0;
	u32 peer;

	mutex_lock(&window->lock);
	if (window->state == SW_REMOVED)
		err = -ENODEV;
	info.kind = window->view.kind;
	info.hosts = window->view.hosts;
	info.slot = window->state == SW_HELD ? window->view.me : ~0U;
	info.slot_bytes = window->view.slot_bytes;
	info.id[0] = window->header.id[0];
	info.id[1] = window->header.id[1];
	for (peer = 0; peer < window->view.hosts; peer++)
		if (window->peers[peer].link.state == SW_LINK_UP)
			info.links |= 1U << peer;
	info.vectors = window->config.vectors;
	info.user_bytes_max = sw_user_bytes_max(window);
	info.user_bytes = sw_pieces_bytes(window, file->uid);
	info.lent_bytes = sw_heap_lent(&window->heap);
	mutex_unlock(&window->lock);
	if (err)
		return err;
	return copy_to_user(arg, &info, sizeof(info)) ? -EFAULT : 0;
}

static int attach(struct sw_file *file, const struct sluice_window_attach *asked)
{
	struct sw_window *window = file->window;
	struct sw_file *other;

	if (window->state == SW_REMOVED)
		return -ENODEV;
	if (file->attached)
		return -EISCONN;
	if (asked->reserved || asked->peer >= window->view.hosts)
		return -EINVAL;
	if (window->state != SW_HELD)
		return -ENOLINK;
	if (asked->peer == window->view.me)
		return -EINVAL;
	if (asked->port == SLUICE_WINDOW_PORT_KERNEL || asked->port == SLUICE_WINDOW_PORT_VERBS ||
	    sw_clients_have_port(window, asked->port))
		return -EACCES;
	if (window->peers[asked->peer].link.state != SW_LINK_UP)
		return -ENOLINK;
	list_for_each_entry(other, &window->files, list)
		if (other->attached && !other->ended && other->peer == asked->peer &&
		    other->port == asked->port)
			return -EADDRINUSE;
	file->peer = asked->peer;
	file->port = asked->port;
	file->attached = true;
	return 0;
}

static long do_attach(struct sw_file *file, void __user *arg)
{
	struct sluice_window_attach asked;
	int err;

	if (copy_from_user(&asked, arg, sizeof(asked)))
		return -EFAULT;
	mutex_lock(&file->window->lock);
	err = attach(file, &asked);
	mutex_unlock(&file->window->lock);
	return err;
}

static long do_piece(struct sw_file *file, void __user *arg,
		     int (*get)(struct sw_file *, struct sluice_window_piece *))
{
	struct sluice_window_piece asked;
	int err;

	if (copy_from_user(&asked, arg, sizeof(asked)))
		return -EFAULT;
	if (asked.reserved)
		return -EINVAL;
	mutex_lock(&file->window->lock);
	err = usable(file);
	if (!err)
		err = get(file, &asked);
	mutex_unlock(&file->window->lock);
	if (err)
		return err;
	return copy_to_user(arg, &asked, sizeof(asked)) ? -EFAULT : 0;
}

static long do_give_up(struct sw_file *file, void __user *arg)
{
	struct sw_piece *piece;
	int err = -EINVAL;
	u64 offset;

	if (copy_from_user(&offset, arg, sizeof(offset)))
		return -EFAULT;
	mutex_lock(&file->window->lock);
	list_for_each_entry(piece, &file->pieces, list)
		if (piece->offset == offset) {
			sw_piece_end(file, piece);
			err = 0;
			break;
		}
	mutex_unlock(&file->window->lock);
	return err;
}

static long do_send(struct sw_file *file, struct sluice_window_message __user *arg)
{
	struct sluice_window_message *message;
	u32 head[2];
	long err;

	if (copy_from_user(head, arg, sizeof(head)))
		return -EFAULT;
	if (head[1] > SLUICE_WINDOW_MESSAGE_MAX)
		return -EMSGSIZE;
	message = kmalloc(sizeof(*message), GFP_KERNEL_ACCOUNT);
	if (!message)
		return -ENOMEM;
	err = -EFAULT;
	if (copy_from_user(message->data, arg->data, head[1]))
		goto out;
	mutex_lock(&file->window->lock);
	err = usable(file);
	if (!err && head[0] >> 16 != file->port)
		err = -EINVAL;
	if (!err)
		err = sw_mail(file->window, file->peer, head[0], message->data, head[1]);
	mutex_unlock(&file->window->lock);
out:
	kfree(message);
	return err;
}

static long do_receive(struct sw_file *file, struct sluice_window_message __user *arg)
{
	struct sw_queued *queued;
	long err = 0;

	mutex_lock(&file->window->lock);
	queued = list_first_entry_or_null(&file->queue, struct sw_queued, list);
	if (queued) {
		list_del(&queued->list);
		file->queued--;
	} else if (file->lost) {
		file->lost = false;
		err = -EOVERFLOW;
	} else {
		err = usable(file);
		if (!err)
			err = -EAGAIN;
	}
	mutex_unlock(&file->window->lock);
	if (!queued)
		return err;
	if (put_user(queued->kind, &arg->kind) || put_user(queued->bytes, &arg->bytes) ||
	    copy_to_user(arg->data, queued->data, queued->bytes))
		err = -EFAULT;
	kfree(queued);
	return err;
}

static long do_event(struct sw_file *file, void __user *arg)
{
	struct sw_window *window = file->window;
	struct sluice_window_event asked;
	struct sw_event_fd *event;
	int err = 0;

	if (copy_from_user(&asked, arg, sizeof(asked)))
		return -EFAULT;
	if (asked.vector && asked.vector >= window->config.vectors)
		return -EINVAL;
	event = kzalloc(sizeof(*event), GFP_KERNEL_ACCOUNT);
	if (!event)
		return -ENOMEM;
	event->file = file;
	event->vector = asked.vector;
	event->ctx = eventfd_ctx_fdget(asked.fd);
	if (IS_ERR(event->ctx)) {
		err = PTR_ERR(event->ctx);
		kfree(event);
		return err;
	}
	mutex_lock(&window->lock);
	if (window->state == SW_REMOVED)
		err = -ENODEV;
	else if (file->event_count >= SLUICE_WINDOW_EVENTS_MAX)
		err = -EMFILE;
	if (!err) {
		file->event_count++;
		spin_lock_irq(&window->events_lock);
		list_add_tail(&event->list, &window->events);
		spin_unlock_irq(&window->events_lock);
	}
	mutex_unlock(&window->lock);
	if (err) {
		eventfd_ctx_put(event->ctx);
		kfree(event);
	}
	return err;
}

static long do_ring(struct sw_file *file, void __user *arg)
{
	struct sw_window *window = file->window;
	struct sw_peer *peer;
	u32 vector;
	int err;

	if (copy_from_user(&vector, arg, sizeof(vector)))
		return -EFAULT;
	mutex_lock(&window->lock);
	err = usable(file);
	if (!err) {
		peer = &window->peers[file->peer];
		if (vector >= peer->vectors)
			err = -EOPNOTSUPP;
		else
			window->config.ops->ring(window->config.backend, peer->bell, vector);
	}
	mutex_unlock(&window->lock);
	return err;
}

static long sw_ioctl(struct file *opened, unsigned int what, unsigned long argument)
{
	struct sw_file *file = opened->private_data;
	void __user *arg = (void __user *)argument;

	switch (what) {
	case SLUICE_WINDOW_INFO:
		return do_info(file, arg);
	case SLUICE_WINDOW_ATTACH:
		return do_attach(file, arg);
	case SLUICE_WINDOW_LEND:
		return do_piece(file, arg, sw_piece_lend);
	case SLUICE_WINDOW_BORROW:
		return do_piece(file, arg, sw_piece_borrow);
	case SLUICE_WINDOW_GIVE_UP:
		return do_give_up(file, arg);
	case SLUICE_WINDOW_SEND:
		return do_send(file, arg);
	case SLUICE_WINDOW_RECEIVE:
		return do_receive(file, arg);
	case SLUICE_WINDOW_EVENT:
		return do_event(file, arg);
	case SLUICE_WINDOW_RING:
		return do_ring(file, arg);
	default:
		return -ENOTTY;
	}
}

static __poll_t sw_poll(struct file *opened, poll_table *table)
{
	struct sw_file *file = opened->private_data;
	__poll_t events = 0;
	int err;

	poll_wait(opened, &file->wait, table);
	mutex_lock(&file->window->lock);
	err = usable(file);
	if (err == -ENODEV || err == -ENOLINK)
		events |= EPOLLHUP;
	if (file->queued || file->lost || (events & EPOLLHUP))
		events |= EPOLLIN;
	mutex_unlock(&file->window->lock);
	return events;
}

static const struct file_operations operations = {
	.owner = THIS_MODULE,
	.open = sw_open,
	.release = sw_release,
	.unlocked_ioctl = sw_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.mmap = sw_mmap,
	.poll = sw_poll,
	.llseek = noop_llseek,
};

int sw_char_add(struct sw_window *window)
{
	snprintf(window->name, sizeof(window->name), "sluice_window%d", window->index);
	window->misc.minor = MISC_DYNAMIC_MINOR;
	window->misc.name = window->name;
	window->misc.fops = &operations;
	window->misc.parent = window->config.parent;
	/* Who may have a part of the window is the administrator's to say. */
	window->misc.mode = 0600;
	return misc_register(&window->misc);
}

void sw_char_remove(struct sw_window *window)
{
	misc_deregister(&window->misc);
}
