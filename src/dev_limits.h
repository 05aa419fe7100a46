/* dev_limits: the bounds of the devices that a layout depends on, as data, so that the planner's sim device can stand for a device that this machine does not have and need not
   open. Each device's own table is made from its row. (dev.h says what the fields mean.) */
#ifndef DEV_LIMITS_H
#define DEV_LIMITS_H

#define LIMITS_CPU  .align = 64,  .queue_work = 0,         .comm_stage = 4 << 20, .wire_cast = true
#define LIMITS_CUDA .align = 256, .queue_work = 160 << 20, .comm_stage = 1 << 20, .wire_cast = false

#endif
